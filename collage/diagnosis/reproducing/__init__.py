"""A fault made small, and a folder that shows it without this project."""
