"""Limits that a process sets for itself before it reads untrusted files."""

from __future__ import annotations

import os
import resource
import signal
import time
from contextlib import suppress
from pathlib import Path

MAX_DESCRIPTORS = 256

SECONDS_PER_CPU_SECOND = 10
"""Wall-clock seconds per CPU second: the machine may be busy, and files may be on a network."""


def be_first_to_go() -> None:
    """Disable core dumps, and make this process the first one that the OOM killer ends."""
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):  # not Linux
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def confine(nice: int) -> None:
    """Forbid file writes, limit open files, and set a minimum niceness, also for later threads."""
    for limit, most in (
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, MAX_DESCRIPTORS),
    ):
        with suppress(OSError, ValueError):
            resource.setrlimit(limit, (most, most))
    with suppress(OSError):  # its niceness is already higher
        os.setpriority(os.PRIO_PROCESS, 0, nice)


def limit_process(cpu_seconds: int, memory: int) -> None:
    """Make the system kill this process after a time, or refuse it memory.

    cpu_seconds: CPU time from now on; the wall-clock limit is ten times as long. 0: unchanged.
    memory: Bytes in addition to its current memory; 0: unchanged.
    """
    if cpu_seconds:
        signal.alarm(cpu_seconds * SECONDS_PER_CPU_SECOND)
        most = int(time.process_time()) + 1 + cpu_seconds
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_CPU, (most, resource.RLIM_INFINITY))
    if memory:
        with suppress(OSError, ValueError):  # ValueError: not Linux
            most = status_bytes("VmData:") + memory  # RLIMIT_DATA limits VmData
            resource.setrlimit(resource.RLIMIT_DATA, (most, resource.RLIM_INFINITY))


def status_bytes(name: str) -> int:
    """Return the bytes of the field `name` in this process's status. Raises ValueError."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) << 10
    raise ValueError(f"no {name}")
