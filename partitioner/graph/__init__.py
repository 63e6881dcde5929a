"""A model as a frozen index of nodes and values, and what is computed on it."""
