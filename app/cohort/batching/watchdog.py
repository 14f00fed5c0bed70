"""Stops runs on the event loop that take far longer than expected.

Such a run blocks the loop, and with it the timers of all deadlines, so a thread watches. The loop
only records the beginning and end of a run; the thread checks that 40 times a second.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

INLINE_LIMIT_SECONDS = 0.05
"""Time that a run may hold the event loop before it is stopped."""

STALL_SECONDS = 0.002
"""An inline run that takes longer is suspect: it takes ten times the expected maximum."""


class InlineRun:
    """The current run on the event loop.

    since: When it began, in seconds on the monotonic clock; 0 between runs.
    running: The RunControl that it uses.
    control: The RunControl that the next one uses; None: runs cannot be stopped.
    """

    __slots__ = ("control", "running", "since")

    def __init__(self, control: Any = None) -> None:
        self.since = 0.0
        self.control = self.running = control


class Watchdog:
    """Stops the run of `inline` when it has taken longer than `limit`, once started.

    make_control: Makes a RunControl. Each serves until a run was stopped with it.
    """

    def __init__(
        self, make_control: Callable[[], Any], *, limit: float = INLINE_LIMIT_SECONDS
    ) -> None:
        self.inline = InlineRun(make_control())
        self._make_control = make_control
        self._limit = limit
        self._closed = threading.Event()

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._watch, name="cohort-watchdog", daemon=True).start()

    def close(self) -> None:
        """End the thread."""
        self._closed.set()

    def _watch(self) -> None:
        stopped = 0.0
        while not self._closed.wait(self._limit / 2):
            since = self.inline.since
            if since and since != stopped and monotonic() - since > self._limit:
                self.stop_run(since)
                stopped = since

    def stop_run(self, since: float) -> None:
        """Stop the run that began at `since`, and no other.

        While `since` stays the same, so does `running`, which the loop records before it. Runs that
        begin later use the new control.
        """
        running = self.inline.running
        self.inline.control = self._make_control()
        if self.inline.since == since:
            running.stop()
