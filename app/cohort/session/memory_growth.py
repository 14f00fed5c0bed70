"""Measurement of the growth of the process's memory during an operation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from cohort.system.confinement import status_bytes


class Growth:
    """Memory that one operation took, in `bytes`: final after the operation, and at least 0."""

    __slots__ = ("_sum",)

    def __init__(self) -> None:
        self._sum = 0.0

    @property
    def bytes(self) -> int:
        """The growth of the process in bytes."""
        return max(0, round(self._sum))

    def add(self, grown: float) -> None:
        """Add a share of the process's growth, which may be negative."""
        self._sum += grown


class MemoryGrowth:
    """A meter that reads the process's resident memory when an operation begins and ends.

    Operations in progress share the growth equally. The growth includes memory that requests took,
    because ONNX Runtime's Python API does not report the memory of a session.

    resident: Returns the bytes; default: those of this process, 0 if the system does not report it.
    """

    def __init__(self, resident: Callable[[], int] | None = None) -> None:
        self._resident = resident or _resident_bytes
        self._lock = threading.Lock()
        self._open: list[Growth] = []
        self._last = 0

    @contextmanager
    def measured(self) -> Iterator[Growth]:
        """Measure the operation inside. Any thread may use it."""
        growth = Growth()
        with self._lock:
            self._sample()
            self._open.append(growth)
        try:
            yield growth
        finally:
            with self._lock:
                self._sample()
                self._open.remove(growth)

    def _sample(self) -> None:
        now = self._resident()
        for one in self._open:
            one.add((now - self._last) / len(self._open))
        self._last = now


def _resident_bytes() -> int:
    with suppress(OSError, ValueError):
        return status_bytes("VmRSS:")
    return 0


MEMORY_GROWTH = MemoryGrowth()
"""Memory taken by loading versions."""
