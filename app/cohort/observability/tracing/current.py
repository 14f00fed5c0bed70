"""The request whose work the running code does, for code that knows nothing of requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from cohort.batching import Times

Attributes = Mapping[str, str | int | float]
"""The attributes of a span."""


class StepReport(Protocol):
    """A step of a pipeline that has ended. Seconds are on the monotonic clock."""

    @property
    def step(self) -> str: ...

    @property
    def model(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def code(self) -> str: ...

    @property
    def seconds(self) -> float: ...

    @property
    def rows(self) -> int: ...

    @property
    def times(self) -> Times | None: ...


class WorkSpans(Protocol):
    """Receives the work that is done for a sampled request, or for several."""

    def step(self, ended: StepReport) -> None:
        """Add a step of a pipeline that ends now."""

    def shadow(self, version: int, began: float, code: str) -> None:
        """Add a shadow's run of a copy, which ends now.

        began: When the copy was queued, in seconds on the monotonic clock.
        code: OK, or the name of its error.
        """

    def chosen(self, which: Sequence[bool]) -> WorkSpans:
        """Return the receiver for some of several requests that were answered together."""


_current: ContextVar[WorkSpans | None] = ContextVar("cohort_span", default=None)


def current_span() -> WorkSpans | None:
    """Return the receiver of the current work; None if its request is not sampled."""
    return _current.get()


@contextmanager
def set_current(span: WorkSpans | None) -> Iterator[None]:
    """Make `span` the receiver of the work that begins in this context."""
    token = _current.set(span)
    try:
        yield
    finally:
        _current.reset(token)
