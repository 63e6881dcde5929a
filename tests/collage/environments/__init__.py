"""Tests of measurements in several environments in turn."""
