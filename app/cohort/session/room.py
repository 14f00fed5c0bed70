"""Admission of models to open, by available memory.

The memory for opening a model depends only roughly on its size. Measured with ONNX Runtime 1.31.1,
the ratio is 1.08 (quantized), 1.3 to 2 (MatMul) or 3.2 (Conv with BatchNormalization). It is 3.3
for FP16, which the CPU converts to FP32, and 0.03 for external data that stays mapped. So the
memory measured by an inspecting child process is used, or the size if no child measured it.
"""

from __future__ import annotations

import math
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cohort.errors import LoadFailed
from cohort.system.cgroups import PROC
from cohort.system.processor import machine_memory, memory_limits

RECHECK_SECONDS = 0.1

FRESH_SECONDS = 0.25


class Room:
    """The memory available to models that are being opened.

    free: Returns the number of free bytes, and the limit.
    """

    def __init__(self, free: Callable[[], tuple[int, int]]) -> None:
        self._read_free = free
        self._free, self._limit, self._looked = 0, 0, -math.inf
        self._granted = 0  # since the last look, and before it to models still being opened
        self._taken = 0
        self._changed = threading.Condition()

    @contextmanager
    def take(self, needed: int, check: Callable[[], object] = int) -> Iterator[None]:
        """Reserve `needed` bytes inside; wait if other models that are being opened use them.

        check: Called repeatedly during the wait; an exception ends the wait.

        Raises LoadFailed if the memory is too small although no other model is being opened.
        """
        with self._changed:
            while needed > self._left(needed):
                if not self._taken:
                    raise LoadFailed(
                        f"opening it needs about {_mebibytes(needed)}, but only "
                        f"{_mebibytes(self._free)} of {_mebibytes(self._limit)} are free: give the "
                        "process more, or unload another model. The replaced version keeps its "
                        "memory until this one is open",
                        transient=needed <= self._limit,
                    )
                self._changed.wait(RECHECK_SECONDS)
                check()
            self._taken += needed
            self._granted += needed
        try:
            yield
        finally:
            with self._changed:
                self._taken -= needed
                self._changed.notify_all()

    def fits(self, needed: int) -> bool:
        """Return True if `needed` bytes fit in addition to the models being opened."""
        with self._changed:
            return needed <= self._left(needed)

    def _left(self, needed: int) -> int:
        """Return the bytes left; measure again if `needed` would not fit or the value is old.

        A measurement takes half a millisecond, and a thousand small models open in a few seconds.
        """
        now = time.monotonic()
        if now - self._looked > FRESH_SECONDS or needed > self._free - self._granted:
            self._free, self._limit = self._read_free()
            self._looked, self._granted = now, self._taken
        return self._free - self._granted


ANY_ROOM = Room(lambda: (sys.maxsize, sys.maxsize))


def _mebibytes(count: int) -> str:
    return f"{count >> 20:,} MiB"


def free_memory(proc: Path = PROC) -> tuple[int, int]:
    """Return the bytes that this process may still take, and the limit they belong to.

    The limits are the machine, its cgroups (v1 or v2) and its address space; the one with the
    fewest free bytes is returned. Cached file pages that were not used recently count as free.
    """
    return min([_of_machine(proc), *_of_cgroups(proc), *_of_address_space(proc)])


ROOM = Room(free_memory)
"""The room of this process."""


def _of_machine(proc: Path) -> tuple[int, int]:
    total = machine_memory()
    with suppress(OSError, KeyError, ValueError):
        return _fields(proc / "meminfo")["MemAvailable:"] << 10, total
    return total, total


def _of_address_space(proc: Path) -> Iterator[tuple[int, int]]:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        with suppress(OSError, KeyError, ValueError):
            yield limit - (_fields(proc / "self/status")["VmSize:"] << 10), limit


def _of_cgroups(proc: Path) -> Iterator[tuple[int, int]]:
    """Iterate over the limits of this process's cgroup and its parents."""
    for group, limit in memory_limits(proc):
        v2 = group.version == 2
        used = group.number("memory.current" if v2 else "memory.usage_in_bytes")
        with suppress(OSError, KeyError):
            stat = _fields(group.folder / "memory.stat")
            if used is not None:
                yield limit - used + stat["inactive_file" if v2 else "total_inactive_file"], limit


def _fields(path: Path) -> dict[str, int]:
    """Return the numbers in a file of lines such as `name: 12 kB`."""
    words = [line.split() for line in path.read_text().splitlines()]
    return {line[0]: int(line[1]) for line in words if len(line) > 1 and line[1].isdigit()}
