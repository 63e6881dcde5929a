"""Tests of the commands that check runtimes."""
