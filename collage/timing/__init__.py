"""Whole plans timed in turn in one child process."""
