"""The partitioned file: written, verified, loaded and exported."""
