"""The sizes of free dimensions: what is said of them, which shapes stand for them."""
