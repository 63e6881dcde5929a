"""The cheapest exact cover of a graph by candidates, as a mixed-integer program."""
