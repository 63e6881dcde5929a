"""Packages and cached loads beside what they are measured against."""
