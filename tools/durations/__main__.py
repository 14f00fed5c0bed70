"""`python -m tools.durations FOLDER`: show where the recorded time went."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tools.durations.recording import Duration, read_durations

ROWS = 25
"""The number of lines of each table."""


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


def main(folder: Path) -> None:
    """Print tables of packages, modules, tests and fixtures."""
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


if __name__ == "__main__":
    main(Path(sys.argv[1]))
