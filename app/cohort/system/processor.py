"""The cores and the memory that this process may use."""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from cohort.system.cgroups import PROC, Cgroup, cgroups

_sharing = 1


def share_machine(processes: int) -> None:
    """Make `cores` return this process's share; `processes` is the number of equal processes."""
    global _sharing  # noqa: PLW0603 - all code of the process shares one machine
    _sharing = processes


def cores(proc: Path = PROC) -> int:
    """Return the number of whole cores for this process; at least 1."""
    limit = cpu_limit(proc)
    return max(1, math.ceil(limit) if _sharing == 1 else math.floor(limit / _sharing))


def cpu_limit(proc: Path = PROC) -> float:
    """Return the cores the process may use, by affinity and cgroup quotas, such as 1.5."""
    affinity = getattr(os, "sched_getaffinity", None)
    count = len(affinity(0)) if affinity else os.cpu_count() or 1
    return min([float(count), *_quotas(proc)])


def available_memory(proc: Path = PROC) -> int:
    """Return the memory limit of the process: that of its cgroups, address space or machine."""
    return min([machine_memory(), *(limit for _, limit in memory_limits(proc)), *_address_space()])


def machine_memory() -> int:
    """Return the memory of the machine, in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def memory_limits(proc: Path = PROC) -> Iterator[tuple[Cgroup, int]]:
    """Iterate over this process's cgroups that limit memory, with their limits in bytes."""
    for group in cgroups("memory", proc):
        limit = group.number("memory.max" if group.version == 2 else "memory.limit_in_bytes")
        if limit is not None:
            yield group, limit


def _address_space() -> Iterator[int]:
    """Yield the limit of `ulimit -v` in bytes, if it is set."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        yield limit


def _quotas(proc: Path) -> Iterator[float]:
    """Iterate over the quotas of the process's cgroups, in cores."""
    for group in cgroups("cpu", proc):
        if group.version == 2:
            with suppress(OSError, ValueError, ZeroDivisionError):  # ValueError: "max"
                limit, period = map(int, (group.folder / "cpu.max").read_text().split())
                yield limit / period
        else:
            limit_us = group.number("cpu.cfs_quota_us")
            period_us = group.number("cpu.cfs_period_us")
            if limit_us is not None and period_us:
                yield limit_us / period_us
