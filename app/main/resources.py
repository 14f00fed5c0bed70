"""What the process may use of the machine: memory and open files."""

from __future__ import annotations

import ctypes
import os
import resource
from contextlib import suppress
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")

RESERVED_FILES = 256
"""Open files kept for models, logs and gRPC; and a tenth of the limit where that is more."""

MOST_FILES = 1 << 20
"""The limit of open files is raised up to here at most."""


def available_memory(cgroup: Path = CGROUP) -> int:
    """The memory of the container or, where it has no limit, of the machine, in bytes."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("memory.max", "memory/memory.limit_in_bytes"):  # cgroup v2, v1
        with suppress(OSError, ValueError):  # ValueError: "max"
            return min(int((cgroup / name).read_text()), machine)
    return machine


def available_connections() -> int:
    """How many connections the limit of open files leaves, after raising it as far as allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    if soft == resource.RLIM_INFINITY:
        soft = MOST_FILES
    return max(soft - max(RESERVED_FILES, soft // 10), soft // 2, 1)


def return_memory() -> None:
    """Return freed memory to the system, where the C library can."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
