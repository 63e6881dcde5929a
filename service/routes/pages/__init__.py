"""The pages: HTML by the server, over the same services as the API."""
