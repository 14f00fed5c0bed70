"""`cohort score`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

import rich_click as click
from rich.console import Console

from cohort.cli import options
from cohort.cli.frame import LINE_SECONDS, STOPPED

if TYPE_CHECKING:
    from pathlib import Path

    from cohort.scoring import Progress, Task


class Names(click.ParamType):  # type: ignore[type-arg]
    """Names separated by commas."""

    name = "names"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[str]:
        """Return the names."""
        return value if isinstance(value, list) else [one.strip() for one in str(value).split(",")]


@click.command(cls=options.settings_command("models", "memory_mb", *options.OPENING))
@click.argument("file")
@click.option("--model", required=True, metavar="NAME", help="The model.")
@click.option("--version", metavar="NUMBER", help="Version; default: the one that answers now.")
@click.option("--out", required=True, metavar="FILE", help="The result: .csv, .parquet or .jsonl.")
@click.option(
    "--columns", type=Names(), metavar="NAMES", help="Columns for the model; default: by name."
)
@click.option("--outputs", type=Names(), metavar="NAMES", help="Outputs to write; default: all.")
@click.option("--ray", is_flag=True, help="Score on a Ray cluster; RAY_ADDRESS names it.")
@click.pass_context
def score(
    context: click.RichContext,
    /,
    file: str,
    model: str,
    version: str | None,
    out: str,
    columns: list[str] | None,
    outputs: list[str] | None,
    ray: bool,
    **_: object,
) -> None:
    """Write FILE with a model's outputs next to each row.

    \b
    cohort score rows.csv --model iris --out scored.csv
    cohort score photos/ --model seen --out labels.jsonl

    FILE is .csv, .parquet (needs the extra score), .jsonl or a folder of pictures, here or at
    s3://, gs:// or az://. A row that fails has its reason in the column 'error'; the exit code is
    then 1. It is 2 if there is no result. If the command is stopped, the same command continues
    where it stopped.
    """
    settings = options.settings_from(context)
    from cohort.errors import CohortError

    logging.getLogger("cohort").setLevel(logging.ERROR)  # the command prints what matters
    started = monotonic()
    try:
        from cohort.scoring import Task, at_hand, check_kind

        kind = check_kind(out)
        with _bar() as show, at_hand(file, out, settings.cache) as local:
            largest = settings.max_body_mb << 20
            task = Task(local.file, kind, model, version, columns, outputs, largest)
            given = {**options.given_settings(context), "watch_seconds": 0}
            done = _run(task, given, local.folder, local.out, show, on_ray=ray)
    except KeyboardInterrupt:
        click.echo("Stopped; the same command continues from here.", err=True)
        context.exit(STOPPED)
    except CohortError as error:
        options.fail(str(error), options.MISUSED)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        options.fail(f"{where}{error.strerror or error}", options.MISUSED)
    click.echo(_summary(done, out, monotonic() - started))
    context.exit(options.PROBLEMS if done.failed else options.OK)


def _run(
    task: Task,
    settings: dict[str, object],
    folder: Path,
    out: Path,
    show: Callable[[Progress], None],
    *,
    on_ray: bool,
) -> Progress:
    if on_ray:
        from cohort.scoring.on_ray import score_on_ray

        return score_on_ray(task, settings, folder=folder, out=out, report=show)
    from cohort.scoring import score_here

    return asyncio.run(score_here(task, settings, folder=folder, out=out, report=show))


def _summary(done: Progress, out: str, seconds: float) -> str:
    failed = f", {done.failed:,} failed (see the column 'error')" if done.failed else ""
    return f"{done.rows:,} rows in {seconds:.1f} s{failed}: {out}"


@contextmanager
def _bar() -> Iterator[Callable[[Progress], None]]:
    """Show a progress bar on stderr; if that is not a terminal, print a line now and then."""
    from rich.progress import (
        BarColumn,
        SpinnerColumn,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bar

    stderr = Console(stderr=True)
    columns = (
        *(SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn()),
        *(TaskProgressColumn(), TimeRemainingColumn()),
    )
    hidden, said, began = not stderr.is_terminal, monotonic(), monotonic()
    with Bar(*columns, console=stderr, transient=True, disable=hidden) as bar:
        shown = bar.add_task("Loading the model", total=None)

        def show(now: Progress) -> None:
            nonlocal said
            rate = now.rows / max(monotonic() - began, 1e-9)
            failed = f", {now.failed:,} failed" if now.failed else ""
            text = f"{now.rows:,} rows{failed}, {rate:,.0f} rows/s"
            bar.update(shown, completed=now.done, total=now.total, description=text)
            if hidden and monotonic() - said >= LINE_SECONDS:
                said = monotonic()
                click.echo(f"{text}, {now.done / max(now.total, 1):.0%}", err=True)

        yield show
