"""Who is fast at what: a summary of the cost database as data, text and a page."""
