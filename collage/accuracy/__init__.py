"""Mixed precision within an error budget."""
