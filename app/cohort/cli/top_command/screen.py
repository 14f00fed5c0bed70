"""Terminal screen of `cohort top`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import islice, pairwise

from rich.console import Group
from rich.table import Table
from rich.text import Text

from cohort.cli.top_command.scraped import Scrape, quantile
from cohort.metrics import DURATION_BUCKETS, SIZE_BUCKETS, VersionCounts
from cohort.operating import at_once
from cohort.operating.live import VersionKey, changes

BARS = "▁▂▃▄▅▆▇█"
WIDE = 60
"""Values in a line of bars."""

_MAX_ROWS = 40
"""Versions shown, busiest first."""


def screen(url: str, history: Sequence[Scrape], problem: str) -> Group:
    """Return the whole screen: a headline, two lines of bars, and a row for each version.

    history: Scrapes so far, at least one.
    problem: Reason why the last scrape failed, or "".
    """
    pairs = list(pairwise(history))[-WIDE:]
    rates = [_rate(before, now) for before, now in pairs]
    times = [_p99(before, now) for before, now in pairs]
    last = history[-1]
    head = Text(f"{url}   ", style="bold")
    head.append(
        f"{rates[-1]:,.0f} requests/s, p99 {_duration(times[-1])}, {last.queued} queued"
        if pairs
        else "waiting for the next update"
    )
    if problem:
        head.append(f"   {problem}", style="bold red")
    return Group(
        head,
        Text.assemble(("requests/s  ", "dim"), bars(rates)),
        Text.assemble(("p99         ", "dim"), bars([one or 0.0 for one in times])),
        busiest_versions(_versions(history), last),
    )


def _seconds(before: Scrape, now: Scrape) -> float:
    return max(now.at - before.at, 1e-9)


@lru_cache(maxsize=2 * WIDE)
def _rate(before: Scrape, now: Scrape) -> float:
    return sum(one.requests for one in _since(before, now).values()) / _seconds(before, now)


def _since(before: Scrape, now: Scrape) -> dict[VersionKey, VersionCounts]:
    found = at_once(changes(before.versions, now.versions))
    return {key: counts for key, (counts, _) in found.items()}


@lru_cache(maxsize=2 * WIDE)
def _p99(before: Scrape, now: Scrape) -> float | None:
    added = VersionCounts()
    for counts in _since(before, now).values():
        added = added.plus(counts)
    return quantile(0.99, added.durations, DURATION_BUCKETS)


def _versions(history: Sequence[Scrape]) -> Mapping[VersionKey, tuple[VersionCounts, float]]:
    """Return the recent counts of each version, and the seconds that they cover."""
    if len(history) < 2:
        return {}
    before, now = history[max(0, len(history) - 6)], history[-1]
    return {key: (counts, _seconds(before, now)) for key, counts in _since(before, now).items()}


def busiest_versions(
    versions: Mapping[VersionKey, tuple[VersionCounts, float]], last: Scrape
) -> Table:
    """Return a table with a row for each version, busiest first."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("version")
    for title in ("requests/s", "failed/s", "p50", "p99", "rows/run", "total"):
        table.add_column(title, justify="right")
    table.add_column("variants")
    nothing = VersionCounts(), 1.0
    order = sorted(last.versions, key=lambda key: (-versions.get(key, nothing)[0].requests, key))
    for key in islice(order, _MAX_ROWS):
        counts, seconds = versions.get(key, nothing)
        failed = counts.requests - counts.codes.get("OK", 0)
        rows = quantile(0.5, counts.rows, SIZE_BUCKETS)
        table.add_row(
            Text("/".join(key).rstrip("/")),
            f"{counts.requests / seconds:,.0f}",
            Text(f"{failed / seconds:,.0f}", style="red" if failed else ""),
            _duration(quantile(0.5, counts.durations, DURATION_BUCKETS)),
            _duration(quantile(0.99, counts.durations, DURATION_BUCKETS)),
            "-" if rows is None else f"≤ {next(b for b in SIZE_BUCKETS if b >= rows):.0f}",
            f"{last.versions[key].requests:,}",
            Text(_variants(counts)),
        )
    if len(order) > _MAX_ROWS:
        table.add_row(Text(f"and {len(order) - _MAX_ROWS} more", style="dim"))
    return table


def _variants(counts: VersionCounts) -> str:
    named = {name: count for name, count in counts.variants.items() if name}
    return ", ".join(f"{name} {count / counts.requests:.0%}" for name, count in named.items())


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} µs"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def bars(values: Sequence[float]) -> str:
    """Format values as a line of bars, scaled to the largest."""
    most = max(values, default=0.0)
    if not most:
        return BARS[0] * len(values)
    return "".join(BARS[min(7, int(value / most * 7.999))] for value in values)
