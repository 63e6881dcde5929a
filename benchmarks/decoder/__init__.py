"""A real decoder with a key-value cache: `python -m benchmarks.decoder`."""
