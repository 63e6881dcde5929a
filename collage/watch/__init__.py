"""Artifacts that are measured again when a runtime, the machine or this program changes."""
