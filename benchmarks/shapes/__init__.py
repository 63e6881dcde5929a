"""Requests of many sizes: one artifact beside every single runtime in its best way."""
