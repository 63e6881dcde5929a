"""How much sooner a model is tuned by what the database has seen on others."""
