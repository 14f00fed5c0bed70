"""The other servers, as their own documentation writes them. Each runs in its own environment."""
