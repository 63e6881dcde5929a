"""Random graphs with random plans, whose results are compared with the reference."""
