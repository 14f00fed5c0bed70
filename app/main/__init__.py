"""The process: what it is made of, the order of start and stop, and its background tasks."""

from app.main.application import create_app
from app.main.server import serve

__all__ = ["create_app", "serve"]
