"""A client of the server."""
