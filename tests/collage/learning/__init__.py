"""Tests of what is learnt from other models."""
