"""`cohort plan`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from cohort.cli.frame import Report, progress, reporting

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from cohort.planning import Plan, ReplicaRuns, Wanted

_UNITS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_TIME = re.compile(r"([0-9.]+(?:e-?[0-9]+)?) *(us|µs|ms|s)")
_BAR_WIDTH = 30
NEARLY_FULL = 0.8
"""A load above it brings a warning."""

_AROUND = 3
"""Replicas below and above the plan that the table shows."""


class Finite(click.FloatRange):
    """A number in a range that is neither infinite nor NaN."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number."""
        found = float(super().convert(value, param, ctx))
        if not isfinite(found):
            self.fail(f"{value!r} is not a number", param, ctx)
        return found


class Duration(click.ParamType[float]):
    """A time with its unit, such as 50ms; the value is in seconds."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the seconds."""
        if isinstance(value, float):
            return value
        found = _TIME.fullmatch(str(value).strip())
        try:
            seconds = float(found[1]) * _UNITS[found[2]] if found else inf
        except ValueError:
            seconds = inf
        return seconds if isfinite(seconds) else self._refuse(value, param, ctx)

    def _refuse(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        self.fail(f"{value!r} is not a time with a unit, such as 50ms, 200us or 1.5s", param, ctx)


@click.command("plan")
@click.option(
    "--rate",
    type=Finite(1e-6, 1e9),
    required=True,
    metavar="NUMBER",
    help="Requests per second in your busiest minute, such as 5000 or 1e6.",
)
@click.option(
    "--p99",
    "seconds",
    type=Duration(),
    required=True,
    metavar="TIME",
    help="Time that 99 % of the requests may take, such as 50ms.",
)
@click.option(
    "--profile",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    metavar="FILE",
    help="Output of cohort profile MODEL --json, measured on a machine like the replicas'.",
)
@click.option(
    "--rows",
    type=click.IntRange(1, 1 << 20),
    default=1,
    show_default=True,
    metavar="COUNT",
    help="Rows of a request.",
)
@click.option(
    "--overhead",
    type=Duration(),
    default="0ms",
    show_default=True,
    metavar="TIME",
    help="Time of a request without its run, on the same core.",
)
@click.option(
    "--variation",
    type=Finite(0, 10),
    default=0.0,
    show_default=True,
    metavar="NUMBER",
    help="Standard deviation of a run's time over its mean.",
)
@click.option(
    "--spare",
    type=click.IntRange(0, 1000),
    default=0,
    show_default=True,
    metavar="COUNT",
    help="Replicas that may be missing at once.",
)
@click.option(
    "--cost",
    type=Finite(0, 1e12),
    metavar="PRICE",
    help="Price of a replica per hour, in any currency.",
)
@reporting
def plan(
    rate: float,
    seconds: float,
    path: Path,
    rows: int,
    overhead: float,
    variation: float,
    spare: int,
    cost: float | None,
) -> Report:
    """Plan how many replicas answer a rate of requests in time.

    All replicas share one queue, and requests arrive at random (M/G/c). A replica has one run at a
    time, unless the profile has better concurrent runs. A simulation checks the result. If the
    profile allows shared runs, their plan is shown as well.

    \b
    cohort profile digits --json >digits.json
    cohort plan --rate 20000 --p99 50ms --profile digits.json --overhead 60us --spare 1
    """
    from cohort.planning import (
        Unreachable,
        UnreadableProfile,
        Wanted,
        plan_replicas,
        read_profile,
    )
    from cohort_prepare.failures import Misused, Rejected

    wanted = Wanted(rate, seconds, variation=variation, overhead=overhead, spare=spare)
    try:
        runs = read_profile(path, rows)
        with progress() as shown:
            shown.add_task("Simulating", total=None)
            found = plan_replicas(runs, wanted)
    except UnreadableProfile as error:
        raise Misused(str(error)) from None
    except Unreachable as error:
        raise Rejected(str(error)) from None
    return Report(True, _findings(found, runs, cost, rate), list(_shown(found, runs, wanted, cost)))


def _findings(found: Plan, runs: ReplicaRuns, cost: float | None, rate: float) -> dict[str, object]:
    findings: dict[str, object] = {
        "model": runs.model,
        "replicas": found.replicas,
        "p99_ms": _ms(found.seconds),
        "simulated_p99_ms": _ms(found.simulated),
        "load": found.load,
        "waiting_share": found.waiting_share,
        "runs_at_once": found.runs_at_once,
        "shared_runs": None,
    }
    if found.shared_replicas is not None:
        findings["shared_runs"] = {
            "replicas": found.shared_replicas,
            "p99_ms": _ms(found.shared_seconds),
        }
    if cost is not None:
        findings["cost_per_hour"] = found.replicas * cost
        findings["cost_per_million_requests"] = _per_million(found.replicas * cost, rate)
    return findings


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 6)


def _replicas(count: int) -> str:
    return "1 replica" if count == 1 else f"{count:,} replicas"


def _per_million(per_hour: float, rate: float) -> float:
    return per_hour / (rate * 3600) * 1e6


def _shown(
    found: Plan, runs: ReplicaRuns, wanted: Wanted, cost: float | None
) -> Iterator[RenderableType]:
    spare = f", {wanted.spare} of them spare" if wanted.spare else ""
    simulated = "" if found.simulated is None else f" ({_ms(found.simulated):.4g} ms simulated)"
    yield (
        f"{_replicas(found.replicas)}{spare}: 99 % of the requests take at most "
        f"{_ms(found.seconds):.4g} ms{simulated}"
    )
    yield f"Each replica is {100 * found.load:.0f} % busy, with {found.runs_at_once} at a time"
    if found.load > NEARLY_FULL:
        yield (
            "Above 80 % busy, a slightly higher rate or longer run makes the queue much longer: "
            "plan for a higher rate, or add --spare"
        )
    if cost is not None:
        total = found.replicas * cost
        yield (
            f"Cost: {total:,.2f} per hour, {_per_million(total, wanted.rate):,.4g} per million "
            "requests at this rate"
        )
    yield _around(found, runs, wanted)
    if found.shared_replicas is not None:
        yield (
            f"If requests share runs, as the profile allows: {_replicas(found.shared_replicas)}, "
            f"{_ms(found.shared_seconds):.4g} ms simulated"
        )
    if wanted.overhead == 0 and runs.seconds < 1e-3:
        yield (
            "A run of this model is shorter than the rest of a request: measure that with "
            "cohort bench, and give it as --overhead"
        )


def _around(found: Plan, runs: ReplicaRuns, wanted: Wanted) -> Table:
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    from cohort.planning import Queue

    table = Table("replicas", "busy", "", "99 % in", "", header_style="bold")
    planned = found.replicas - wanted.spare
    seconds = runs.seconds + wanted.overhead
    for replicas in range(max(1, planned - _AROUND), planned + _AROUND + 1):
        queue = Queue(wanted.rate, replicas * runs.at_once, seconds, wanted.variation)
        time = queue.time(wanted.share)
        text = "grows without end" if queue.load >= 1 else f"{1000 * time:.4g} ms"
        bar = ProgressBar(total=1.0, completed=min(1.0, queue.load), width=_BAR_WIDTH)
        chosen = "planned" if replicas == planned else ""
        late = "" if time <= wanted.seconds else "late"
        busy = f"{100 * queue.load:.0f} %"
        table.add_row(f"{replicas:,} {chosen}".rstrip(), busy, bar, text, late)
    return table
