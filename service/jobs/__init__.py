"""Jobs from a request to a finished process."""
