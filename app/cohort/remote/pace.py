"""How fast the files of a version come, so that one that trickles holds up no others."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event

SLOW_BYTES, SLOW_SECONDS = 1 << 20, 10.0
"""Fewer bytes a second, over so many seconds, are slow: others are served without it meanwhile."""


class Progress:
    """What has come of a version that is being fetched, told by one thread and read by others.

    given_up: Set once its files are no longer wanted.
    bytes_come: Bytes so far, those that are read again from a part that is here among them.
    bytes_known: How large it is, as far as the listing says.
    began: When it began to be fetched, on the monotonic clock; 0: not yet.
    slow: Whether it was slow when it was looked at last.

    count: Is told of the bytes that have come from the repository.
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
        """Its turn has come."""
        self.began = self._marked_at = time.monotonic()

    def read(self, size: int) -> None:
        """So many bytes of it are here already."""
        self.bytes_come += size

    def came(self, size: int) -> None:
        """So many bytes of it have come."""
        self.bytes_come += size
        self._count(size)

    def look(self) -> None:
        """See how fast it has come since it was looked at, if that is SLOW_SECONDS ago."""
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
