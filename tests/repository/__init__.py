"""Promises that concern the repository as a whole."""
