"""A server's use from /proc: all processes of the session that it was started in.

Its child processes count as well, even in other sessions.
"""

from __future__ import annotations

import os
from pathlib import Path

TICK = 1 / os.sysconf("SC_CLK_TCK")
PROC = Path("/proc")


def processes(session: int) -> list[Path]:
    """The folders in /proc of every process in the session, and of those that these began."""
    all_fields = {
        folder: fields
        for folder in PROC.iterdir()
        if folder.name.isdigit() and (fields := _fields(folder))
    }
    found = [folder for folder, fields in all_fields.items() if int(fields[3]) == session]
    for parent in found:  # it grows during the loop
        found += [
            folder
            for folder, fields in all_fields.items()
            if fields[1] == parent.name and folder not in found
        ]
    return found


def cpu_seconds(session: int) -> float:
    """Processor time so far, user and system, with that of children who ended."""
    ticks = sum(sum(map(int, _fields(one)[11:15] or "0")) for one in processes(session))
    return ticks * TICK


def memory_mb(session: int, kind: str = "VmHWM") -> float:
    """MiB of memory: `VmHWM` at its peak, `VmRSS` now; shared pages count in each process."""
    total = 0
    for folder in processes(session):
        try:
            lines = (folder / "status").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith(kind + ":"))
    return total / 1024


def _fields(folder: Path) -> list[str]:
    """Return the fields of `stat` from the third on; [] if the process just ended."""
    try:
        return (folder / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def busy_seconds() -> float:
    """Processor time of the whole machine so far, without what it was idle."""
    fields = [int(one) for one in (PROC / "stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) * TICK
