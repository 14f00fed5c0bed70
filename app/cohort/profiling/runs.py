"""How the runs of a measurement are made: all at once, or for a short time."""

from __future__ import annotations

import threading
from time import perf_counter, thread_time
from types import TracebackType
from typing import Protocol

from cohort.batching import Outputs, RunFeeds
from cohort.errors import CohortError
from cohort.session import OrtRunControl, Session
from cohort.tensors import Arrays


class OutOfTime(Exception):
    """The time for a measurement is over.

    No CohortError: whatever measures goes on after those, and would take this for a verdict.
    """


class Runs(Protocol):
    """Makes the runs of a measurement.

    disturbed: Whether other runs were in progress during one of them.
    """

    disturbed: bool

    def of(self, session: Session) -> RunFeeds:
        """What runs `session`; raises as it does, and OutOfTime."""

    def clock(self) -> float:
        """Seconds of runs; only the difference between two looks counts."""

    def processor_clock(self) -> float:
        """The same without what the machine did meanwhile besides, for runs on one thread."""


class FreeRuns:
    """Runs without a limit."""

    disturbed = False

    def of(self, session: Session) -> RunFeeds:
        """See `Runs`."""
        return session.run

    def clock(self) -> float:
        """See `Runs`."""
        return perf_counter()

    def processor_clock(self) -> float:
        """See `Runs`."""
        return thread_time()


FREE_RUNS = FreeRuns()


class BriefRuns(FreeRuns):
    """Runs that are over after `seconds`, by the clock, from `with` on.

    None begins that could not end in time, going by the one before; one that is longer all the same
    ends before its next node.

    before: Seconds that a run took; default 0: none is known.
    """

    def __init__(self, seconds: float, *, before: float = 0.0) -> None:
        self._before = before
        self._until = perf_counter() + seconds
        self._control = OrtRunControl()
        self._timer = threading.Timer(seconds, self._control.stop)
        self._timer.daemon = True

    def __enter__(self) -> BriefRuns:
        self._timer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._timer.cancel()

    def of(self, session: Session) -> RunFeeds:
        """See `Runs`."""

        def run(feeds: Arrays) -> Outputs:
            started = perf_counter()
            if started + self._before > self._until:
                raise OutOfTime
            try:
                return session.run(feeds, self._control)
            except CohortError:
                if perf_counter() >= self._until:
                    raise OutOfTime from None
                raise
            finally:
                self._before = perf_counter() - started

        return run
