"""A plan compiled and run."""
