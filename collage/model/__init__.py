"""The model of a tuning run: reference values, sample inputs and sub-models."""
