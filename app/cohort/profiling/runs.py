"""Runs of a measurement: without a limit, or for a short time."""

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
    """The time for a measurement has ended.

    Not a CohortError: a measurement continues after those, and would count this as a result.
    """


class Runs(Protocol):
    """Makes the runs of a measurement.

    disturbed: True if other runs were in progress during one of them.
    """

    disturbed: bool

    def of(self, session: Session) -> RunFeeds:
        """Return a function that runs `session`; it raises the same errors, and OutOfTime."""

    def clock(self) -> float:
        """Return the seconds of runs; only the difference between two calls counts."""

    def processor_clock(self) -> float:
        """Return the processor seconds, without other work of the machine, of one-thread runs."""


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
    """Runs that end `seconds` after `with` begins, by the clock.

    A run does not start if the duration of the previous one exceeds the time left. A run that
    exceeds it is stopped before its next node.

    before: The duration of a previous run, in seconds; default 0: unknown.
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
