"""A tuning run from a model to an artifact."""
