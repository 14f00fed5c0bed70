"""Results of a load test, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cohort.cli.bench_command.loops import LoadOutcome

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
BUCKETS_PER_DECADE = 10
BUSY = 0.85
"""Share of a core above which the client itself may limit the result."""

MAX_DRAINED, MAX_LATE = 0.2, 0.5
"""Limits for warnings: time to drain as a share of the run, lateness as a share of the median."""

BAR_CHARACTERS = 40


def describe_outcome(asked: dict[str, Any], outcome: LoadOutcome) -> dict[str, Any]:
    """Return the options and the results for `--json`. Times are in milliseconds."""
    latencies, late = sorted(outcome.latencies), at(0.99, sorted(outcome.late))
    failed = sum(outcome.failures.values())
    return {
        **asked,
        "seconds": round(outcome.seconds, 3),
        "answered": len(latencies),
        "failed": dict(outcome.failures.most_common()),
        "not_sent": outcome.not_sent,
        "answers_per_second": round(outcome.answered / max(outcome.seconds, 1e-9), 1),
        "latency_ms": {
            **{name: milliseconds(at(share, latencies)) for name, share in PERCENTILES.items()},
            "mean": milliseconds(sum(latencies) / len(latencies) if latencies else None),
            "max": milliseconds(latencies[-1] if latencies else None),
        },
        "histogram_ms": [[round(1000 * end, 6), count] for end, count in histogram(latencies)],
        "client_cores": round(outcome.busy, 2),
        "client_late_ms": milliseconds(late),
        "drained_seconds": round(outcome.drained, 2),
        "warnings": _warnings(asked, outcome, failed, late, at(0.5, latencies)),
    }


def milliseconds(seconds: float | None) -> float | None:
    """Return milliseconds for JSON; None stays None."""
    return None if seconds is None else round(1000 * seconds, 4)


def at(share: float, ordered: Sequence[float]) -> float | None:
    """Return the quantile at `share` of sorted values; None if there are no values."""
    if not ordered:
        return None
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


def histogram(ordered: Sequence[float]) -> list[tuple[float, int]]:
    """Count values in logarithmic buckets, ten to a decade. Returns upper bounds and counts."""
    counts: dict[int, int] = {}
    for value in ordered:
        place = floor(log10(max(value, 1e-9)) * BUCKETS_PER_DECADE)
        counts[place] = counts.get(place, 0) + 1
    if not counts:
        return []
    return [
        (10 ** ((place + 1) / BUCKETS_PER_DECADE), counts.get(place, 0))
        for place in range(min(counts), max(counts) + 1)
    ]


def _warnings(
    asked: dict[str, Any],
    outcome: LoadOutcome,
    failed: int,
    late: float | None,
    middle: float | None,
) -> list[str]:
    found = []
    if outcome.stopped:
        found.append(f"stopped after {outcome.seconds:.3g} of {asked['seconds']:g} s")
    due = len(outcome.latencies) + failed + outcome.not_sent
    if outcome.drained > MAX_DRAINED * outcome.seconds:
        found.append(
            f"the server did not keep up: {outcome.answered:,} of {due:,} requests were answered "
            f"in time, the last {outcome.drained:.1f} s after the end"
        )
    if not outcome.latencies:
        found.append("no request was answered; try more --seconds")
    if late is not None and middle is not None and late > MAX_LATE * middle:
        found.append(
            f"this client started 1 % of the requests at least {1000 * late:.3g} ms late: it may "
            "be the bottleneck"
        )
    if outcome.busy > BUSY:
        found.append(f"this client used {outcome.busy:.2f} of a core: it may be the bottleneck")
    if outcome.not_sent:
        found.append(f"{outcome.not_sent} requests were not sent because too many were in flight")
    if failed:
        found.append(f"{failed} requests failed; latencies leave them out")
    return found


def draw_outcome(found: dict[str, Any]) -> RenderableType:
    """Format the result of `describe_outcome` for a terminal."""
    times = Table(box=None, pad_edge=False)
    for name in found["latency_ms"]:
        times.add_column(name, justify="right")
    shown = found["latency_ms"].values()
    times.add_row(*["-" if value is None else f"{value:,.3g} ms" for value in shown])
    bars = Table(box=None, pad_edge=False, show_header=False)
    most = max((count for _, count in found["histogram_ms"]), default=1)
    for end, count in found["histogram_ms"]:
        bar = "█" * round(BAR_CHARACTERS * count / most) or ("▏" if count else "")
        bars.add_row(Text(f"≤ {end:.3g} ms", justify="right"), bar, f"{count:,}")
    failures = [Text(f"{count:,} x {why}", style="red") for why, count in found["failed"].items()]
    if found["loop"] == "closed":
        loop = "closed loop (slow answers reduce the load; --rate does not)"
    else:
        loop = f"open loop, {found['rate']:g} requests/s at random times"
    version = f"version {found['version']}" if found["version"] else "default version"
    return Group(
        Text(f"{found['model']}, {version}, at {found['url']}: {found['protocol']}"),
        Text(
            f"{found['seconds']:g} s, {found['connections']:,} callers, "
            f"{found['rows']:,} row{'s' * (found['rows'] != 1)} per request; {loop}"
        ),
        Text(
            f"{found['answered']:,} answered, {sum(found['failed'].values()):,} failed, "
            f"{found['not_sent']:,} not sent"
        ),
        Text(f"{found['answers_per_second']:,} answers/s", style="bold"),
        times,
        bars,
        *_draw_tokens(found.get("tokens")),
        *failures,
        *[Text(f"Note: {one}", style="yellow") for one in found["warnings"]],
    )


def _draw_tokens(tokens: dict[str, Any] | None) -> list[RenderableType]:
    if tokens is None:
        return []
    table = Table(box=None, pad_edge=False)
    for name in ("", *PERCENTILES, "mean"):
        table.add_column(name, justify="right")
    for title, key in (("first token", "first_token_ms"), ("between tokens", "between_tokens_ms")):
        shown = tokens[key].values()
        table.add_row(title, *["-" if value is None else f"{value:,.3g} ms" for value in shown])
    rates = (
        f"{tokens['tokens_per_second']:,} tokens/s, "
        f"{tokens['prompt_tokens_per_second']:,} tokens of prompts/s"
    )
    return [Text(rates, style="bold"), table]
