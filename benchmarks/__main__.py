"""Compare Cohort with other servers and ONNX Runtime: `python -m benchmarks`, or `make bench`."""

from __future__ import annotations

import os

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import sys
import time

import rich_click as click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from benchmarks import copies, extras, load, machine, report
from benchmarks.measure import Found, matrix
from benchmarks.servers import BUILD, SERVERS
from benchmarks.workloads import WORKLOADS

EXTRAS = ("open", "memory", "neighbour", "copies")


def _listed(_: click.Context, __: click.Parameter, value: str) -> list[str]:
    return [part for part in value.split(",") if part]


@click.command()
@click.option("--quick", is_flag=True, help="About 3 minutes: fewer servers, connections, rounds.")
@click.option(
    "--models", default="", callback=_listed,
    help=f"Which of {','.join(one.name for one in WORKLOADS)}; 'none' for the extras alone.",
)  # fmt: skip
@click.option("--servers", default="", callback=_listed, help=f"Which of {','.join(SERVERS)}.")
@click.option(
    "--connections", default="", callback=_listed, help="Numbers of callers. [1,16,64,256]"
)
@click.option("--rounds", default=0, help="Turns that each server gets. [3]")
@click.option("--seconds", default=0.0, help="Length of a round. [3]")
@click.option(
    "--extras", "more", default=",".join(EXTRAS), callback=_listed,
    help=f"Which of {','.join(EXTRAS)}; 'none' for none.",
)  # fmt: skip
@click.option("--requests", default=1_000_000, help="Requests that memory is watched over.")
@click.option("--write/--no-write", default=True, help="Write RESULTS.md and the plots.")
def main(
    quick: bool, models: list[str], servers: list[str], connections: list[str], rounds: int,
    seconds: float, more: list[str], requests: int, write: bool,
) -> None:  # fmt: skip
    """Measure, print one table, and write benchmarks/RESULTS.md."""
    console = Console() if sys.stdout.isatty() else Console(width=190)
    if problem := load.missing():
        raise click.ClickException(problem)
    chosen = [SERVERS[name] for name in servers or (["cohort", "tutorial"] if quick else SERVERS)]
    many = [int(part) for part in connections] or ([1, 64] if quick else [1, 16, 64, 256])
    rounds = rounds or (1 if quick else 3)
    seconds = seconds or (2 if quick else 3)
    found = Found()
    found.about = {
        **machine.describe(),
        "rounds": rounds, "seconds": seconds, "began": time.strftime("%Y-%m-%d %H:%M %Z"),
        "load_before": os.getloadavg(),
    }  # fmt: skip
    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(),
        console=console, transient=True,
    ) as progress:  # fmt: skip
        task = progress.add_task("")
        quiet = not console.is_terminal

        def say(text: str) -> None:
            progress.update(task, description=text)
            if quiet:
                print(time.strftime("%H:%M:%S"), text, flush=True)

        for workload in WORKLOADS:
            if not models or workload.name in models:
                matrix(
                    workload, chosen, found, say,
                    connections=many, rounds=rounds, seconds=seconds,
                )  # fmt: skip
                found.save(BUILD / "results.json")
        two = [one for one in chosen if one.name in ("cohort", "tutorial")]
        turns = {
            "open": lambda: extras.open_loop(two, found, say, rounds=rounds, seconds=seconds),
            "memory": lambda: extras.growth(
                found, say, requests=min(requests, 100_000) if quick else requests
            ),
            "neighbour": lambda: extras.neighbour(found, say, rounds=rounds, seconds=seconds),
            "copies": lambda: copies.count(found, say),
        }
        for name in EXTRAS:
            if name in more:
                try:
                    turns[name]()
                except (RuntimeError, OSError, StopIteration) as error:
                    found.failed.setdefault(name, {})["cohort"] = str(error)
                found.save(BUILD / "results.json")
    found.about["load_after"] = os.getloadavg()
    found.save(BUILD / "results.json")
    console.print(report.table(found))
    console.print(report.targets_table(found))
    if write:
        report.write(found)


if __name__ == "__main__":
    main()
