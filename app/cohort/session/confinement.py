"""What a process may do that looks at what somebody else wrote."""

from __future__ import annotations

import resource
import signal
import time
from contextlib import suppress
from pathlib import Path

from cohort.session.thread_priority import lower_priority

MAX_DESCRIPTORS = 256

SECONDS_PER_CPU_SECOND = 10
"""The machine may do something else as well, and files may come over a network."""


def confine() -> None:
    """Leave no core, write no file, give way to others, and be the first to go for want of memory.

    Each as far as the system knows it.
    """
    for limit, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, MAX_DESCRIPTORS),
    ):
        with suppress(OSError, ValueError):
            resource.setrlimit(limit, (most, most))
    lower_priority()  # of what this thread starts as well
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def limit_process(cpu_seconds: int, memory: int) -> None:
    """Have the system end this process, by a signal, or refuse it memory."""
    signal.alarm(cpu_seconds * SECONDS_PER_CPU_SECOND)
    used = int(time.process_time()) + 1
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CPU, (used + cpu_seconds, resource.RLIM_INFINITY))
    with suppress(OSError, ValueError):  # ValueError: not Linux
        taken = status_bytes("VmData:")  # what counts for RLIMIT_DATA
        resource.setrlimit(resource.RLIMIT_DATA, (taken + memory, resource.RLIM_INFINITY))


def status_bytes(name: str) -> int:
    """The number of bytes that the system says of this process under `name`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) << 10
    raise ValueError(f"no {name}")
