"""The process: what it is made of, the order of start and stop, and its background tasks."""

from typing import TYPE_CHECKING

from cohort.process.server import serve

if TYPE_CHECKING:
    from cohort.process.application import create_app

__all__ = ["create_app", "serve"]


def __getattr__(name: str) -> object:
    """Import `create_app` when it is asked for: `serve` starts without FastAPI."""
    if name == "create_app":
        from cohort.process.application import create_app  # noqa: PLC0415

        return create_app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
