"""One artifact for a range of shapes."""
