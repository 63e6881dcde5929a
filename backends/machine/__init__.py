"""What machine this is, and how its processes and cores are set."""
