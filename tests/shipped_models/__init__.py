"""Models as people ship them: each test states the right value for a kind of model."""
