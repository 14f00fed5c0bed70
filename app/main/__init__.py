"""The process: its parts, the order they start and stop in, and its background loops."""

from app.main.application import create_app
from app.main.server import serve

__all__ = ["create_app", "serve"]
