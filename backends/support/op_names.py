"""Operators written as words, which read better than a list of quoted ones."""

from __future__ import annotations


def op_names(words: str) -> frozenset[str]:
    """The names in a text, which are separated by blanks."""
    return frozenset(words.split())
