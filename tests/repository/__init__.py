"""Tests of the repository as a whole."""
