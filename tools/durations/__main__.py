"""`python -m tools.durations FOLDER COMMAND ...`: run the tests, and show where their time went.

COMMAND runs pytest with `tools.durations.recording`, which writes into FOLDER.
"""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.waiting import wait_until
from tools.durations.recording import Duration, read_durations

ROWS = 25
"""The number of lines of each table."""

LEFT_SECONDS = 5.0
"""Seconds that processes left by the tests may take to end, and still count."""


def grouped(durations: Iterable[Duration], key: Callable[[str], str]) -> dict[str, Duration]:
    """Add up durations whose names have the same key; `kind` becomes how many there were."""
    groups: dict[str, list[Duration]] = defaultdict(list)
    for duration in durations:
        groups[key(duration.name)].append(duration)
    return {
        name: Duration(str(len(ones)), name, sum(x.wall for x in ones), sum(x.cpu for x in ones))
        for name, ones in groups.items()
    }


def show(title: str, durations: Iterable[Duration], order: Callable[[Duration], float]) -> None:
    """Print those that are largest by `order`."""
    table = Table(title=title, title_justify="left")
    for heading in ("CPU s", "waiting s", "times"):
        table.add_column(heading, justify="right")
    table.add_column("name", overflow="fold")
    for one in sorted(durations, key=order, reverse=True)[:ROWS]:
        table.add_row(
            f"{one.cpu:.1f}", f"{max(0.0, one.wall - one.cpu):.1f}", one.kind, escape(one.name)
        )
    Console(width=150).print(table)


def run(command: Sequence[str]) -> float:
    """Run a command, whatever it returns; give the processor time of all processes below it.

    Those count whose parent ended before them: Linux makes them children of this process.
    """
    subreaper = 36  # PR_SET_CHILD_SUBREAPER
    assert not ctypes.CDLL(None, use_errno=True).prctl(subreaper, 1, 0, 0, 0), "needs Linux"
    process = subprocess.Popen(command)
    ended = 0
    while ended != process.pid:
        ended, status = os.wait()
    process.returncode = os.waitstatus_to_exitcode(status)
    with suppress(ChildProcessError, TimeoutError):  # until none is left
        wait_until(_reap, seconds=LEFT_SECONDS)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _reap() -> None:
    while os.waitpid(-1, os.WNOHANG)[0]:
        pass


def main(folder: Path, command: Sequence[str]) -> None:
    """Print tables of packages, modules, tests and fixtures."""
    everything = run(command)
    durations = read_durations(folder)
    phases = [one for one in durations if one.kind == "test"]
    fixtures = [one for one in durations if one.kind == "fixture"]
    tests = grouped(phases, lambda name: name).values()
    packages = grouped(phases, lambda name: "/".join(name.split("::")[0].split("/")[:2])).values()
    modules = grouped(phases, lambda name: name.split("::")[0]).values()
    show("Packages", packages, lambda one: one.cpu)
    show("Modules", modules, lambda one: one.cpu)
    show("Tests", tests, lambda one: one.cpu)
    show("Tests that wait", tests, lambda one: one.wall - one.cpu)
    show("Fixtures", grouped(fixtures, lambda name: name).values(), lambda one: one.cpu)
    total = sum(one.cpu for one in phases)
    print(f"cohort: {len(tests)} tests took {total:.0f} s of CPU")
    print(
        f"cohort: the run took {everything:.0f} s; the rest is pytest's start and collection, and"
        " processes whose parent ended before them, such as a browser's"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
