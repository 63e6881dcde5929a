"""Native code in a child process with limits."""
