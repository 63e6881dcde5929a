"""Tests of collage/tuning/objectives."""
