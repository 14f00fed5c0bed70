"""Whether there is memory for a model that is to be opened.

What a model takes while it is opened follows its size only roughly: measured with ONNX Runtime
1.31.1, 1.08 times that (quantized), 1.3 to 2 (MatMul), 3.2 (Conv with BatchNormalization), 3.3
(FP16, of which the CPU makes FP32), and 0.03 for external data that stays mapped. So what the
inspecting child took is what counts, where there was one, and else the size.
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
    """The memory that what is being opened may still take.

    free: Returns how many bytes are free, and of how many.
    """

    def __init__(self, free: Callable[[], tuple[int, int]]) -> None:
        self._look = free
        self._free, self._limit, self._looked = 0, 0, -math.inf
        self._granted = 0  # since then, and before by those who still open
        self._taken = 0
        self._changed = threading.Condition()

    @contextmanager
    def take(self, needed: int, check: Callable[[], object] = int) -> Iterator[None]:
        """Have room for `needed` bytes inside, once others that are being opened leave so much.

        check: Called while it waits for those; raises to end that.

        Raises LoadFailed where there is too little although nothing else is being opened.
        """
        with self._changed:
            while needed > self._left(needed):
                if not self._taken:
                    raise LoadFailed(
                        f"it takes about {_mebibytes(needed)} to open, and "
                        f"{_mebibytes(self._free)} of {_mebibytes(self._limit)} are free (a "
                        "version that it replaces keeps its memory until then): give the process "
                        "more, or unload another model",
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
        """Whether there is room for `needed` bytes beside what is being opened."""
        with self._changed:
            return needed <= self._left(needed)

    def _left(self, needed: int) -> int:
        """The bytes that are left; looked at again where `needed` would not fit, or now and then.

        Looking takes half a millisecond, and a thousand small models open in a few seconds.
        """
        now = time.monotonic()
        if now - self._looked > FRESH_SECONDS or needed > self._free - self._granted:
            self._free, self._limit = self._look()
            self._looked, self._granted = now, self._taken
        return self._free - self._granted


ANY_ROOM = Room(lambda: (sys.maxsize, sys.maxsize))


def _mebibytes(count: int) -> str:
    return f"{count >> 20:,} MiB"


def free_memory(proc: Path = PROC) -> tuple[int, int]:
    """The bytes that this process may still take, and of how many.

    Of the machine, the cgroups it is in, with v1 or v2, and its limit of address space, the one
    that leaves least. Pages of files that were not used lately count as free.
    """
    return min([_of_machine(proc), *_of_cgroups(proc), *_of_address_space(proc)])


ROOM = Room(free_memory)
"""That of this process."""


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
    """Of the cgroup of this process and those around it, each that has a limit."""
    for group, limit in memory_limits(proc):
        v2 = group.version == 2
        used = group.number("memory.current" if v2 else "memory.usage_in_bytes")
        with suppress(OSError, KeyError):
            stat = _fields(group.folder / "memory.stat")
            if used is not None:
                yield limit - used + stat["inactive_file" if v2 else "total_inactive_file"], limit


def _fields(path: Path) -> dict[str, int]:
    """The numbers of a file of lines such as `name: 12 kB`."""
    words = [line.split() for line in path.read_text().splitlines()]
    return {line[0]: int(line[1]) for line in words if len(line) > 1 and line[1].isdigit()}
