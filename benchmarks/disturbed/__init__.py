"""Tuning beside other work on the same cores: what becomes of the plan that it returns."""
