"""Two checkouts of Cohort side by side on the small model: does a change cost the hot path?

    python -m benchmarks.checkouts OTHER_CHECKOUT [--rounds N]
    python -m benchmarks.checkouts . --setting COHORT_ACCESS_LOG=true

The second holds a setting against its default.

Both serve the benchmark's MLP in separate processes and are loaded in turn. The order alternates
with each round, so that other work on the machine affects both. Reported are medians over the
rounds, and the median and range of the rounds' ratios; CPU per request is the steady figure.
"""

from __future__ import annotations

import os

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import statistics
from collections.abc import Sequence
from pathlib import Path

import rich_click as click
from rich.console import Console
from rich.table import Table

from benchmarks import load
from benchmarks.load import Round, wrk
from benchmarks.measure import model_folder
from benchmarks.servers import ROOT, cohort_of, launch
from benchmarks.workloads import WORKLOADS, Workload


@click.command()
@click.argument("other", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--model", default="mlp", show_default=True, help="Which of the workloads.")
@click.option("--connections", default=64, show_default=True, help="Number of callers.")
@click.option("--rounds", default=8, show_default=True, help="Turns that each checkout gets.")
@click.option("--seconds", default=3.0, show_default=True, help="Length of a round.")
@click.option("--setting", "settings", multiple=True, help="NAME=VALUE for this checkout alone.")
def main(
    other: Path, model: str, connections: int, rounds: int, seconds: float, settings: Sequence[str]
) -> None:
    """Measure this checkout against OTHER."""
    if problem := load.missing():
        raise click.ClickException(problem)
    workload = next(one for one in WORKLOADS if one.name == model)
    own = dict(one.split("=", 1) for one in settings)
    servers = {
        "this": cohort_of("this", ROOT, own),
        "other": cohort_of("other", other.resolve(), {}),
    }
    running = {}
    try:
        for name, server in servers.items():
            running[name] = launch(server, workload, model_folder(workload))
            running[name].wait()
            wrk(running[name], connections, 1)  # warm
        found: dict[str, list[Round]] = {name: [] for name in servers}
        for number in range(rounds):
            order = list(servers) if number % 2 else list(servers)[::-1]
            for name in order:
                found[name].append(wrk(running[name], connections, seconds))
    finally:
        for one in running.values():
            one.stop()
    Console(width=100).print(_table(workload, connections, found["this"], found["other"]))


def _table(
    workload: Workload, connections: int, this: Sequence[Round], other: Sequence[Round]
) -> Table:
    table = Table("figure", "this", "other", "this / other", "range of the ratios")
    table.title = f"{workload.name}, {connections} connections, {len(this)} rounds each"
    for title, of in (
        ("CPU per request, us", lambda one: one.cpu_us),
        ("requests per second", lambda one: one.rate),
        ("p50, ms", lambda one: one.p50 * 1000),
        ("p99, ms", lambda one: one.p99 * 1000),
    ):
        ours, theirs = [of(one) for one in this], [of(one) for one in other]
        ratios = [mine / yours for mine, yours in zip(ours, theirs, strict=True)]
        table.add_row(
            title,
            f"{statistics.median(ours):.2f}",
            f"{statistics.median(theirs):.2f}",
            f"{statistics.median(ratios):.3f}",
            f"{min(ratios):.3f} to {max(ratios):.3f}",
        )
    errors = [sum(one.refused + one.errors for one in rounds) for rounds in (this, other)]
    table.add_row("refused or failed", *map(str, errors), "", "")
    return table


if __name__ == "__main__":
    main()
