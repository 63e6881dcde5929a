"""Targets and workers that the server can use."""
