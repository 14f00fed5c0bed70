"""The page that tries models, its files, and what it asks the server for."""
