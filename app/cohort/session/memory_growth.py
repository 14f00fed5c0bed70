"""What the memory of the process grew by while something was done."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from cohort.system.confinement import status_bytes


class Growth:
    """Memory that one thing took, in `bytes`: final once it is done, and never less than 0."""

    __slots__ = ("_sum",)

    def __init__(self) -> None:
        self._sum = 0.0

    @property
    def bytes(self) -> int:
        """What the process grew by."""
        return max(0, round(self._sum))

    def add(self, grown: float) -> None:
        """Count what the process grew by meanwhile, which may be less than nothing."""
        self._sum += grown


class MemoryGrowth:
    """Looks at the process's resident memory when something begins and when it ends.

    What it grew by in between is shared equally by all that was in progress. What requests took
    meanwhile is in it, too: ONNX Runtime's Python API tells of no session what it has.

    resident: Gives the bytes; default: those of this process, 0 where the system does not tell.
    """

    def __init__(self, resident: Callable[[], int] | None = None) -> None:
        self._resident = resident or _resident_bytes
        self._lock = threading.Lock()
        self._open: list[Growth] = []
        self._last = 0

    @contextmanager
    def measured(self) -> Iterator[Growth]:
        """Measure what is done inside. May be used on any thread."""
        growth = Growth()
        with self._lock:
            self._look()
            self._open.append(growth)
        try:
            yield growth
        finally:
            with self._lock:
                self._look()
                self._open.remove(growth)

    def _look(self) -> None:
        now = self._resident()
        for one in self._open:
            one.add((now - self._last) / len(self._open))
        self._last = now


def _resident_bytes() -> int:
    with suppress(OSError, ValueError):
        return status_bytes("VmRSS:")
    return 0


MEMORY_GROWTH = MemoryGrowth()
"""What loads of versions took."""
