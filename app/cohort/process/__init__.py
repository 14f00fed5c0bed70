"""The process: what it is made of, the order of start and stop, and its background tasks."""

from cohort.process.server import serve

__all__ = ["serve"]
