"""Limits that a process sets itself before it looks at what somebody else wrote."""

from __future__ import annotations

import os
import resource
import signal
import time
from contextlib import suppress
from pathlib import Path

MAX_DESCRIPTORS = 256

SECONDS_PER_CPU_SECOND = 10
"""The machine may do something else as well, and files may come over a network."""


def be_first_to_go() -> None:
    """Leave no core, and be the first that the system kills for want of memory."""
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):  # not Linux
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def confine(nice: int) -> None:
    """Write no file, open few, and have at least this niceness, as do threads that start later."""
    for limit, most in (
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, MAX_DESCRIPTORS),
    ):
        with suppress(OSError, ValueError):
            resource.setrlimit(limit, (most, most))
    with suppress(OSError):  # it had a higher one already
        os.setpriority(os.PRIO_PROCESS, 0, nice)


def limit_process(cpu_seconds: int, memory: int) -> None:
    """Have the system end this process by a signal, or refuse it memory.

    cpu_seconds: CPU time from now on; ten times as much passes at most. 0: as before.
    memory: Bytes besides what it has now; 0: as before.
    """
    if cpu_seconds:
        signal.alarm(cpu_seconds * SECONDS_PER_CPU_SECOND)
        most = int(time.process_time()) + 1 + cpu_seconds
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_CPU, (most, resource.RLIM_INFINITY))
    if memory:
        with suppress(OSError, ValueError):  # ValueError: not Linux
            most = status_bytes("VmData:") + memory  # what counts for RLIMIT_DATA
            resource.setrlimit(resource.RLIMIT_DATA, (most, resource.RLIM_INFINITY))


def status_bytes(name: str) -> int:
    """The number of bytes that the system says of this process under `name`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) << 10
    raise ValueError(f"no {name}")
