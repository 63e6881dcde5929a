"""Backends for tests and the conformance suite for every backend."""
