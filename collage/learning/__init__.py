"""What the measurements of other models say about a new one."""
