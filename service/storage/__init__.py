"""Files of the server: models, artifacts and what is drawn of them."""
