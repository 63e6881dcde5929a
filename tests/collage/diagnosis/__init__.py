"""Tests of the search for faults of runtimes."""
