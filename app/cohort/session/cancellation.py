"""Ending work early that goes on in another thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic


class WorkCancelled(Exception):
    """The work was cancelled, for the reason in its message.

    No CohortError: whatever tries one thing after another goes on after those.
    """


class CancellationToken:
    """Cancels work in another thread, also while that waits for a call to return.

    reason: Why the work was cancelled; "" while it was not.
    stage: What the work is at, for messages; default "waiting".
    """

    def __init__(self) -> None:
        self.reason = ""
        self.stage = "waiting"
        self._waited = 0.0
        self._waits_since: float | None = None  # on the monotonic clock
        self._ends: list[Callable[[], object]] = []

    def cancel(self, reason: str) -> None:
        """Have the work end as soon as it can. Only the first reason counts."""
        self.reason = self.reason or reason
        for end in list(self._ends):
            end()

    def check(self) -> None:
        """Raise WorkCancelled once the work was cancelled."""
        if self.reason:
            raise WorkCancelled(self.reason)

    def enter(self, stage: str) -> None:
        """Begin another stage of the work. Raises WorkCancelled."""
        self.check()
        self.stage = stage

    @property
    def waited(self) -> float:
        """The seconds that the work has waited for others so far, in `waiting`."""
        since = self._waits_since
        return self._waited + (0.0 if since is None else monotonic() - since)

    @contextmanager
    def waiting(self, stage: str) -> Iterator[None]:
        """Wait inside for what others hold: no limit of time on the work counts that.

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
        """Have `cancel` call `end`, which may be called twice, while inside.

        `end` is called at once where the work was cancelled before.
        """
        self._ends.append(end)  # before the look: `cancel` sets the reason first
        try:
            if self.reason:
                end()
            yield
        finally:
            self._ends.remove(end)
