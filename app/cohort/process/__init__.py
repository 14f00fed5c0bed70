"""The process: its parts, the order of start and stop, and its background tasks."""

from cohort.process.server import serve

__all__ = ["serve"]
