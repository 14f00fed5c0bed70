"""The threads and the memory in which inputs are prepared."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any

from cohort.errors import Overloaded

MUCH_WORK = 8 << 20
"""Bytes sent from which a request is prepared on the one thread for long work."""


class Workroom:
    """Threads for the requests of all models; one of them is for long work alone.

    threads: How many are for short work.
    maximum: Bytes that prepared inputs may take, of all requests that wait or run.
    """

    def __init__(self, threads: int, maximum: int) -> None:
        self.maximum = maximum
        self._used = 0
        self._lock = Lock()
        self._short = ThreadPoolExecutor(threads, "cohort-prepare")
        self._long = ThreadPoolExecutor(1, "cohort-prepare-long")

    def take(self, size: int) -> None:
        """Take so many bytes, on any thread. Raises Overloaded where others have them."""
        with self._lock:
            if self._used and self._used + size > self.maximum:
                raise Overloaded(
                    f"inputs that are prepared take {self._used / 2**20:.0f} MiB of the "
                    f"{self.maximum / 2**20:.0f} MiB that this server gives them"
                )
            self._used += size

    def give_back(self, size: int) -> None:
        """Give back what was taken."""
        with self._lock:
            self._used -= size

    @property
    def used(self) -> int:
        """The bytes that are taken."""
        return self._used

    def submit(self, work: Callable[[], None], size: int) -> Future[Any]:
        """Do `work`, which raises nothing, for a request of so many bytes."""
        return (self._long if size > MUCH_WORK else self._short).submit(work)

    def close(self) -> None:
        """Begin nothing more."""
        self._short.shutdown(wait=False, cancel_futures=True)
        self._long.shutdown(wait=False, cancel_futures=True)
