"""Bytes, a file or a zip in, a normalized model out."""
