"""The search over plans with costs measured on demand."""
