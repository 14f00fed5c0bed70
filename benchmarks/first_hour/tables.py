"""The tables of docs/reports/first-hour.md."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from benchmarks import machine

SHOWN = 110
"""Characters of an answer that a table has."""

Outcome = Mapping[str, object]


def tables(
    lines: Mapping[str, int],
    times: Mapping[str, Sequence[float]],
    found: Sequence[Outcome],
    versions: str,
) -> str:
    """Return the summary and each mistake, as Markdown.

    `lines` to write and `times` of starts in seconds are by server; `found` has the outcome of each
    mistake with each server.
    """
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    base = next(iter(medians.values()))
    facts = machine.describe()

    def count(name: str, holds: Callable[[Outcome], object]) -> int:
        return sum(bool(holds(one)) for one in found if one["server"] == name)

    return "\n".join([
        *head("", lines),
        row("lines of code to write", lines.values()),
        row(
            "seconds to the first answer: median, range",
            (
                f"{medians[name]:.1f}, {min(seconds):.1f} to {max(seconds):.1f}"
                for name, seconds in times.items()
            ),
        ),
        row("the same in Cohort's", (f"{median / base:.1f}" for median in medians.values())),
        row(
            f"mistakes explained, of {len(found) // len(lines)}",
            (count(name, lambda one: one["explained"]) for name in lines),
        ),
        row(
            "refused as a failure of the server's (500)",
            (count(name, lambda one: one["status"] == "500") for name in lines),
        ),
        row(
            "answered as if nothing were wrong (200)",
            (count(name, lambda one: one["status"] == "200") for name in lines),
        ),
        "",
        f"{facts['machine']}, Python {facts['python']}, {versions}, Cohort at {facts['cohort']}; "
        f"{min(map(len, times.values()))} starts of each, in turns.",
        "",
        "## Each mistake",
        "",
        *head("mistake", lines),
        *(
            row(what, (cell(one) for one in found if one["what"] == what))
            for what in dict.fromkeys(str(one["what"]) for one in found)
        ),
        "",
    ])  # fmt: skip


def head(first: str, names: Mapping[str, object]) -> list[str]:
    return [row(first, names), row("---", ["---"] * len(names))]


def row(first: str, cells: Iterable[object]) -> str:
    return f"| {first} | {' | '.join(map(str, cells))} |"


def cell(one: Outcome) -> str:
    """Return the outcome of a mistake, marked if it explains it, and cut to a readable length."""
    said = " ".join(str(one["said"]).split())
    short = said if len(said) <= SHOWN else said[:SHOWN] + "…"
    short = short.replace("`", "'").replace("|", "\\|")
    return f"{'✓ ' if one['explained'] else ''}{one['status']}" + (f": `{short}`" if short else "")
