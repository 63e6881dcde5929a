"""Whole plans, timed and improved until nothing changes."""
