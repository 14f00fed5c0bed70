"""`cohort quantize`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from cohort.cli.frame import Report, progress, reporting

if TYPE_CHECKING:
    from rich.table import Table

    from cohort_prepare.quantizing import Method, Quantized, QuantizeOptions
    from cohort_prepare.quantizing.measuring import MeasuredPair, ModelMeasurement
    from cohort_prepare.quantizing.quality import Quality

FILE = click.Path(path_type=Path)


@click.command()
@click.argument("model", type=FILE)
@click.option("--out", type=FILE, required=True, help="File for the quantized model.")
@click.option(
    "--recipe",
    type=click.Choice(["auto", "dynamic", "static", "fp16", "int4"]),
    default="auto",
    show_default=True,
    help="auto tries all that suit the model and keeps the best, or none.",
)
@click.option(
    "--calibration",
    type=FILE,
    help="Rows for static: a .npz with inputs by name, a .jsonl with a request per line, or a "
    "folder of those.",
)
@click.option(
    "--inputs",
    type=FILE,
    help="Rows to compare outputs on; default: those of --calibration.",
)
@click.option("--labels", type=FILE, help="Correct answer for each row of --inputs, a .npy.")
@click.option(
    "--allowed-drop",
    type=click.FloatRange(0, 1),
    default=0.01,
    show_default=True,
    help="Allowed loss of accuracy; without labels, of rows with the same decision.",
)
@click.option(
    "--method",
    "methods",
    type=click.Choice(["minmax", "entropy", "percentile"]),
    multiple=True,
    help="Calibration method; default: the one of all three with the closest outputs.",
)
@click.option(
    "--weight-bits",
    type=click.Choice(["7", "8"]),
    help="Use 7 for x86 processors without VNNI; default: chosen for this machine.",
)
@click.option(
    "--search-seconds",
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    help="Time to search for nodes to keep in float if quality drops; 0: no search.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(1),
    default=3600.0,
    show_default=True,
    help="Time limit of each step, in seconds.",
)
@click.option("--plot", type=FILE, help="Plot of size and speed, .png or .svg.")
@reporting
def quantize(
    model: Path,
    out: Path,
    recipe: Any,
    calibration: Path | None,
    inputs: Path | None,
    labels: Path | None,
    allowed_drop: float,
    methods: tuple[Method, ...],
    weight_bits: str | None,
    search_seconds: float,
    timeout: float,
    plot: Path | None,
) -> Report:
    """Make MODEL smaller and, where possible, faster; measured against the original.

    A named recipe is written unless its outputs lose more than --allowed-drop. auto writes the best
    recipe that pays, or nothing. Exit code 1 means that nothing was written; the table shows why.
    """
    from cohort_prepare.failures import Misused
    from cohort_prepare.quantizing import (
        CALIBRATION_METHODS,
        Limits,
        QuantizeOptions,
        quantize_model,
    )

    if plot is not None and plot.suffix not in {".png", ".svg"}:
        raise Misused(f"--plot must be a .png or .svg file, got {plot}")
    if methods and recipe not in {"static", "auto"}:
        raise Misused("--method needs the static recipe")
    options = QuantizeOptions(
        recipe=recipe,
        calibration=calibration,
        inputs=inputs,
        labels=labels,
        limits=Limits(allowed_drop),
        methods=methods or CALIBRATION_METHODS,
        seven_bits=None if weight_bits is None else weight_bits == "7",
        search_seconds=search_seconds,
        job_seconds=timeout,
    )
    with progress() as bar:
        task = bar.add_task("Reading the model", total=None)

        def on_progress(text: str) -> None:
            bar.update(task, description=_capital(text))

        result = quantize_model(model, out, options, on_progress=on_progress)
        on_progress("drawing")
        drawn = None if plot is None else _draw(model, plot, options, result)
    return _report(model, out, options, result, drawn)


def _draw(model: Path, plot: Path, options: QuantizeOptions, result: Quantized) -> str:
    """Draw the plot; return why it could not be written, or ""."""
    from cohort_prepare.quantizing.plot import draw_pareto

    try:
        plot.parent.mkdir(parents=True, exist_ok=True)
        draw_pareto(result, options.limits, model.name, plot)
    except OSError as error:
        return f"{plot} cannot be written: {error.strerror or error}"
    return ""


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _report(
    model: Path, out: Path, options: QuantizeOptions, result: Quantized, drawn: str | None
) -> Report:
    from cohort_prepare.onnx_files import model_size
    from cohort_prepare.quantizing.findings import describe_quantized
    from cohort_prepare.quantizing.verdict import why_not

    findings = {
        "model": str(model),
        "recipe": options.recipe,
        "out": str(out) if result.acceptable else None,
        "bytes": model_size(out) if result.acceptable else None,
        **describe_quantized(result, options.limits),
    }
    lines = [_capital(result.reason)]
    for one in result.candidates:
        why = one.failure if one.pair is None else why_not(one.pair, options.limits)
        shown = result.acceptable or one.pair is None  # else the reason includes them
        if why and options.recipe == "auto" and shown:
            lines.append(f"Not {one.name}: {why}")
    lines += [_capital(note) for note in (*result.notes, *([drawn] if drawn else []))]
    lines.append(f"Wrote {out}" if result.acceptable else "Nothing was written")
    return Report(result.acceptable, findings, [_table(result), *lines])


def _table(result: Quantized) -> Table:
    from rich.table import Table

    original = result.original
    sizes = list(original.seconds) if original else []
    headings = [f"ms at {rows}" for rows in sizes]
    table = Table("", "MiB", "load ms", *headings, "server speed", "batching", "outputs", "")
    table.header_style = "bold"
    if original is not None:
        table.add_row("original", *_figures(original, sizes), "", _batching(original), "", "")
    for one in result.candidates:
        if one.pair is None:
            table.add_row(one.name, *[""] * (4 + len(sizes)), "failed", "")
            continue
        table.add_row(
            one.name,
            *_figures(one.pair.candidate, sizes),
            _speed(one.pair),
            _batching(one.pair.candidate),
            _outputs(one.pair.quality),
            "taken" if one.name == result.chosen else "",
        )
    return table


def _figures(one: ModelMeasurement, sizes: list[int]) -> list[str]:
    times = [f"{one.seconds[rows] * 1000:.3f}" if rows in one.seconds else "" for rows in sizes]
    return [f"{one.size / (1 << 20):.2f}", f"{one.load_seconds * 1000:.1f}", *times]


def _speed(pair: MeasuredPair) -> str:
    from cohort_prepare.quantizing.verdict import overall, speeds

    ratios = speeds(pair)
    return f"{overall(ratios):.2f} ({', '.join(f'{one:.1f}' for one in ratios.values())})"


def _batching(one: ModelMeasurement) -> str:
    return "off" if one.unbatchable else "on"


def _outputs(quality: Quality) -> str:
    if quality.broken:
        return "unusable"
    if (labels := quality.labels) is not None:
        return f"accuracy {labels.before:.4f} → {labels.after:.4f}"
    if quality.decision:
        return f"same decision {1 - quality.changed / quality.rows:.2%}"
    return f"cosine {quality.cosine:.5f}"
