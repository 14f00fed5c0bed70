"""The download rate of a version, so that a slow one does not delay others."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event

SLOW_BYTES, SLOW_SECONDS = 1 << 20, 10.0
"""The rate in bytes per second below which a download is slow, and the seconds measured."""


class Progress:
    """The progress of one version's fetch, written by one thread and read by others.

    given_up: Set once its files are no longer wanted.
    bytes_come: Bytes so far, including those read again from local incomplete files.
    bytes_known: The version's size, without files whose size is not listed.
    began: The start of the fetch, on the monotonic clock; 0: not started.
    slow: True if it was slow at the last check.

    count: Called with the number of bytes that came from the repository.
    """

    def __init__(self, bytes_known: int, count: Callable[[int], None]) -> None:
        self.given_up = Event()
        self.bytes_come, self.bytes_known = 0, bytes_known
        self.began = 0.0
        self.slow = False
        self._count = count
        self._rate = 0.0
        self._marked_at, self._marked = 0.0, 0

    def begin(self) -> None:
        """Start the clock of the fetch."""
        self.began = self._marked_at = time.monotonic()

    def read(self, size: int) -> None:
        """Add `size` bytes that were already here."""
        self.bytes_come += size

    def came(self, size: int) -> None:
        """Add `size` bytes that came from the repository."""
        self.bytes_come += size
        self._count(size)

    def check(self) -> None:
        """Measure the rate since the last check, if that was SLOW_SECONDS ago or more."""
        now = time.monotonic()
        if self.began and now - self._marked_at >= SLOW_SECONDS:
            come = self.bytes_come
            self._rate = (come - self._marked) / (now - self._marked_at)
            self._marked_at, self._marked = now, come
            self.slow = self._rate < SLOW_BYTES

    def __str__(self) -> str:
        size = f" of {self.bytes_known / 2**20:,.1f}" if self.bytes_known else ""
        seconds = self._marked_at - self.began
        return (
            f"comes slowly: {self._rate / 2**10:,.1f} KiB/s, {self.bytes_come / 2**20:,.1f}{size} "
            f"MiB after {seconds:,.0f} s; others are served without it"
        )
