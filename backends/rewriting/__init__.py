"""Graph passes that compute the same in another form."""
