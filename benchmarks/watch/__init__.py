"""How often a watch tells a change that is none, and how often it misses one."""
