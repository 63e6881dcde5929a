"""Graph passes, after which a runtime computes the same faster; `table` lists them."""
