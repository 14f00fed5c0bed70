"""The threads and the memory limit for the preparation of inputs."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any

from cohort.errors import Overloaded

MUCH_WORK = 8 << 20
"""Requests with more bytes are prepared on the single thread for long work."""


class Workroom:
    """Threads for the requests of all models, with one more thread for long work only.

    threads: The number of threads for short work.
    maximum: Maximum bytes of the prepared inputs of all requests that wait or run.
    """

    def __init__(self, threads: int, maximum: int) -> None:
        self.maximum = maximum
        self._used = 0
        self._lock = Lock()
        self._short = ThreadPoolExecutor(threads, "cohort-prepare")
        self._long = ThreadPoolExecutor(1, "cohort-prepare-long")

    def take(self, size: int) -> None:
        """Reserve bytes, on any thread. Raises Overloaded if other requests use them."""
        with self._lock:
            if self._used and self._used + size > self.maximum:
                raise Overloaded(
                    f"prepared inputs use {self._used / 2**20:.0f} MiB of the "
                    f"{self.maximum / 2**20:.0f} MiB that this server allows for them"
                )
            self._used += size

    def give_back(self, size: int) -> None:
        """Release reserved bytes."""
        with self._lock:
            self._used -= size

    @property
    def used(self) -> int:
        """The reserved bytes."""
        return self._used

    def submit(self, work: Callable[[], None], size: int) -> Future[Any]:
        """Run `work`, which must not raise, on a thread chosen by the bytes of its request."""
        return (self._long if size > MUCH_WORK else self._short).submit(work)

    def close(self) -> None:
        """Start no more work, and cancel queued work."""
        self._short.shutdown(wait=False, cancel_futures=True)
        self._long.shutdown(wait=False, cancel_futures=True)
