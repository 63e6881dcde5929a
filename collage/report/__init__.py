"""What a tuning run found: as data, text and pictures."""
