"""Which nodes are wrong, crash, hang or are slow on a target: found, explained and made reproducible."""
