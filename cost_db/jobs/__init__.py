"""Stored jobs, their events and their order."""
