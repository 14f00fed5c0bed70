"""Cohort: serve ONNX models over HTTP and gRPC, or to tasks in your program."""

from __future__ import annotations

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, whose import would slow the start

if TYPE_CHECKING:
    from cohort.process.application import create_app
    from cohort.process.runtime import Runtime

__all__ = ["Runtime", "create_app"]


def __getattr__(name: str) -> object:
    """Import a public name on first use, because commands and servers start without it."""
    if name == "Runtime":
        from cohort.process.runtime import Runtime  # noqa: PLC0415

        return Runtime
    if name == "create_app":
        from cohort.process.application import create_app  # noqa: PLC0415

        return create_app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
