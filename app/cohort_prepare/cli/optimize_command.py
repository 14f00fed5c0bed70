"""`cohort optimize`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from cohort.cli.frame import Report, progress, reporting

if TYPE_CHECKING:
    from rich.table import Table

    from cohort_prepare.evaluating.timing import Comparison
    from cohort_prepare.optimizing import Optimized, StepOutcome

STEP_HELP = """\
Steps to apply in this order, even if slower: fuse, slim, fp16, bf16, ort-basic, ort-extended,
ort-all. Default: try fuse, slim, fp16, ort-basic and ort-extended, and keep those that are not
slower on this machine."""


def _split(_: click.Context, __: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    return None if value is None else tuple(one for one in value.replace(",", " ").split())


def _sizes(_: click.Context, __: click.Parameter, value: str) -> tuple[int, ...]:
    sizes = tuple(int(one) if one.strip().isdecimal() else 0 for one in value.split(","))
    if not all(0 < size <= _MAX_ROWS for size in sizes):
        raise click.BadParameter(f"must be numbers of rows from 1 to {_MAX_ROWS}, such as 1,8,32")
    return tuple(sorted(set(sizes)))


_MAX_ROWS = 4096


@click.command("optimize")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--out", required=True, metavar="FILE", type=click.Path(path_type=Path))
@click.option("--steps", metavar="NAMES", callback=_split, help=STEP_HELP)
@click.option("--opset", type=int, metavar="N", help="Convert to this opset first.")
@click.option(
    "--inputs",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="A .npz with inputs by name, for comparison and timing; default: generated.",
)
@click.option(
    "--batch-sizes",
    "sizes",
    metavar="ROWS",
    default="1,8,32",
    show_default=True,
    callback=_sizes,
    help="Batch sizes to time.",
)
@click.option(
    "--model-type",
    metavar="NAME",
    default="bert",
    show_default=True,
    help="Model type for the fuse step, as in onnxruntime.transformers.",
)
@click.option(
    "--ort-format",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Folder for .ort files and the config of a reduced build, for mobile and edge.",
)
@click.option(
    "--ort-target",
    type=click.Choice(["arm", "amd64"]),
    default="arm",
    show_default=True,
    help="Processor for the .ort files.",
)
@click.option(
    "--budget",
    metavar="SECONDS",
    type=click.FloatRange(0, 3600),
    default=3,
    show_default=True,
    help="Seconds of timing per step.",
)
@click.option(
    "--seconds",
    metavar="SECONDS",
    type=click.FloatRange(1, 86400),
    default=3600,
    show_default=True,
    help="Total time limit; each step gets a share of the rest and is skipped if it takes longer.",
)
@reporting
def optimize_command(
    model: Path,
    out: Path,
    steps: tuple[str, ...] | None,
    opset: int | None,
    inputs: Path | None,
    sizes: tuple[int, ...],
    model_type: str,
    ort_format: Path | None,
    ort_target: str,
    budget: float,
    seconds: float,
) -> Report:
    """Make MODEL smaller and faster by steps that are each verified and measured here.

    Each step is compared with the model before it on the same inputs, and timed against it with one
    thread, as a server runs it. Inputs and outputs do not change.
    """
    from cohort_prepare.optimizing import OptimizeOptions, optimize

    options = OptimizeOptions(
        steps=steps,
        opset=opset,
        model_type=model_type,
        sizes=sizes,
        budget=budget,
        seconds=seconds,
        ort_format=ort_format,
        ort_target=ort_target,
    )
    with progress() as bar:
        task = bar.add_task("Starting", total=None)
        done = optimize(
            model,
            out,
            options=options,
            cases=inputs,
            on_progress=lambda t: bar.update(task, description=t),
        )
    return _report(done, out)


def _report(done: Optimized, out: Path) -> Report:
    from cohort_prepare.optimizing import describe_optimized

    return Report(
        True, {"out": str(out), **describe_optimized(done)}, (_table(done), *_lines(done, out))
    )


def _table(done: Optimized) -> Table:
    from rich.table import Table

    sizes = sorted({rows for one in done.steps if one.measured for rows in one.measured.runs})
    times = [f"{rows} row{'s' * (rows != 1)}" for rows in sizes]
    table = Table("step", "size", "nodes", *times, "load", "difference", "", header_style="bold")
    first = next((one.measured for one in done.steps if one.measured and one.measured.load), None)
    table.add_row(
        "the model",
        _size(done.before.size),
        str(done.before.nodes),
        *[_milliseconds(first.runs.get(rows)) if first else "" for rows in sizes],
        _milliseconds(first.load) if first else "",
    )
    for one in done.steps:
        table.add_row(*_row(one, sizes))
    if done.overall is not None and sum(one.kept for one in done.steps) > 1:
        measured, footprint = done.overall, done.after
        table.add_section()
        table.add_row(
            "all kept steps",
            _size(footprint.size),
            str(footprint.nodes),
            *[_time(measured.runs.get(rows)) for rows in sizes],
            _time(measured.load),
            f"{measured.difference.max_absolute:.1e}" if measured.difference else "",
        )
    return table


def _row(one: StepOutcome, sizes: list[int]) -> list[str]:
    footprint, measured = one.footprint, one.measured
    verdict = f"{'kept' if one.kept else 'left'}: {one.why}"
    if footprint is None or measured is None:
        return [one.step.name, "", "", *[""] * len(sizes), "", "", verdict]
    return [
        one.step.name,
        _size(footprint.size),
        str(footprint.nodes),
        *[_time(measured.runs.get(rows)) for rows in sizes],
        _time(measured.load),
        f"{measured.difference.max_absolute:.1e}" if measured.difference else "",
        verdict,
    ]


def _size(size: int) -> str:
    return f"{size / 1e6:,.2f} MB"


def _milliseconds(one: Comparison | None) -> str:
    """Format the median time before a step."""
    return f"{one.before.median * 1000:.3f} ms" if one is not None else ""


def _time(one: Comparison | None) -> str:
    """Format the median time after a step, and its ratio to the time before."""
    return f"{one.after.median * 1000:.3f} ms {one.ratio.median:.2f}x" if one is not None else ""


def _lines(done: Optimized, out: Path) -> list[str]:
    lines = [
        f"{one.step.name}: {warning}" for one in done.steps if one.kept for warning in one.warnings
    ]
    kept = ", ".join(one.step.name for one in done.steps if one.kept)
    lines.append(f"{out}: {f'with {kept}' if kept else 'unchanged'}")
    if measured := next((one.measured for one in done.steps if one.measured), None):
        lines.append("x: processor time relative to the model before; median of alternating runs")
        if measured.unbatchable:
            lines.append(f"Timed with one batch size only: {measured.unbatchable}")
    if done.ort_files:
        folder = done.ort_files[0].parent
        lines.append(f"{folder}: {', '.join(file.name for file in done.ort_files)}")
    return lines
