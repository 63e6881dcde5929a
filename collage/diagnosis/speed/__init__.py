"""Regions in which a target is slower than another, or than another version."""
