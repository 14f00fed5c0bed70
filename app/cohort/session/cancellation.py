"""Cancellation of work that runs in another thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic


class WorkCancelled(Exception):
    """The work was cancelled, for the reason in its message.

    It is not a CohortError, because code that tries alternatives continues after a CohortError.
    """


class CancellationToken:
    """A token that cancels work in another thread, even during a blocking call.

    reason: The reason for the cancellation; "" before it.
    stage: The current stage of the work, for messages; default "waiting".
    """

    def __init__(self) -> None:
        self.reason = ""
        self.stage = "waiting"
        self._waited = 0.0
        self._waits_since: float | None = None  # on the monotonic clock
        self._ends: list[Callable[[], object]] = []

    def cancel(self, reason: str) -> None:
        """Cancel the work as soon as possible. Only the first reason is kept."""
        self.reason = self.reason or reason
        for end in list(self._ends):
            end()

    def check(self) -> None:
        """Raise WorkCancelled if the work was cancelled."""
        if self.reason:
            raise WorkCancelled(self.reason)

    def enter(self, stage: str) -> None:
        """Begin another stage of the work. Raises WorkCancelled."""
        self.check()
        self.stage = stage

    @property
    def waited(self) -> float:
        """The seconds that the work has spent in `waiting` so far."""
        since = self._waits_since
        return self._waited + (0.0 if since is None else monotonic() - since)

    @contextmanager
    def waiting(self, stage: str) -> Iterator[None]:
        """Exclude the time inside, spent waiting for other work, from time limits.

        Raises WorkCancelled.
        """
        self.enter(stage)
        self._waits_since = monotonic()
        try:
            yield
        finally:
            self._waited, self._waits_since = self.waited, None

    @contextmanager
    def calling(self, end: Callable[[], object]) -> Iterator[None]:
        """Register `end` with `cancel` while inside. `end` may be called twice.

        If the work was already cancelled, `end` is called immediately.
        """
        self._ends.append(end)  # before the check: `cancel` sets the reason first
        try:
            if self.reason:
                end()
            yield
        finally:
            self._ends.remove(end)
