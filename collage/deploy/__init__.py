"""Artifacts as folders that run without this package."""
