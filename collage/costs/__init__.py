"""Costs of candidates: measured, estimated and stored."""
