"""Cohort: serve ONNX models over HTTP and gRPC, or to the tasks of a program of your own."""

from __future__ import annotations

TYPE_CHECKING = False  # that of typing, whose import is not for the first moments of a process

if TYPE_CHECKING:
    from cohort.process.application import create_app
    from cohort.process.runtime import Runtime

__all__ = ["Runtime", "create_app"]


def __getattr__(name: str) -> object:
    """Import what is public when it is asked for: commands and servers start without it."""
    if name == "Runtime":
        from cohort.process.runtime import Runtime  # noqa: PLC0415

        return Runtime
    if name == "create_app":
        from cohort.process.application import create_app  # noqa: PLC0415

        return create_app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
