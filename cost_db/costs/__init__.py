"""Stored costs: keys, rows, claims, queries and transfer."""
