"""The page for people, in a real browser and from outside."""
