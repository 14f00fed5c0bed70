"""A model's way to the server."""
