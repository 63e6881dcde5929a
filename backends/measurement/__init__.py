"""One sub-model on one target: compiled, verified and timed in a child process."""
