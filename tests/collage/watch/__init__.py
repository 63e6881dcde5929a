"""Tests of the watch over artifacts."""
