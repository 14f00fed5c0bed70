"""How many cores the process may use."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


_sharing = 1


def share_machine(processes: int) -> None:
    """Have `cores` count this process's part: so many processes do the same work side by side."""
    global _sharing  # noqa: PLW0603 - what is shared is the machine, of which there is one
    _sharing = processes


def cores(cgroup: Path = CGROUP) -> int:
    """The cores for this process, in whole ones; at least 1."""
    limit = cpu_limit(cgroup)
    return max(1, math.ceil(limit) if _sharing == 1 else math.floor(limit / _sharing))


def cpu_limit(cgroup: Path = CGROUP) -> float:
    """The cores it may keep busy, by its affinity and its container's quota, such as 1.5."""
    affinity = getattr(os, "sched_getaffinity", None)
    count = len(affinity(0)) if affinity else os.cpu_count() or 1
    quota = _quota(cgroup)
    return float(count) if quota is None else min(float(count), quota)


def available_memory(cgroup: Path = CGROUP) -> int:
    """The memory of the container or, where it has no limit, of the machine, in bytes."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("memory.max", "memory/memory.limit_in_bytes"):  # cgroup v2, v1
        with suppress(OSError, ValueError):  # ValueError: "max"
            return min(int((cgroup / name).read_text()), machine)
    return machine


def _quota(cgroup: Path) -> float | None:
    """The container's quota in cores, from cgroup v2 or v1; None where there is none."""
    try:
        limit, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            limit = (cgroup / "cpu/cpu.cfs_quota_us").read_text().strip()
            period = (cgroup / "cpu/cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    if not limit.isdigit() or not period.isdigit() or not int(period):
        return None
    return int(limit) / int(period)
