"""The page for trying models, its files and its data routes."""
