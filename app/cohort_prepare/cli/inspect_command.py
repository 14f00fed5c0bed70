"""`cohort inspect`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from cohort.cli.frame import Report, progress, reporting, settings_of_environment

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from cohort.settings import Settings
    from cohort_prepare.overview.parts import Behavior, ModelStructure, ModelValue

_MAX_ROWS = 20
"""Rows shown of a table; --json has all."""


@click.command("inspect")
@click.argument("model")
@click.option(
    "--batch",
    type=click.IntRange(1, 1 << 20),
    default=1,
    show_default=True,
    metavar="ROWS",
    help="Rows of the run for which operations are counted.",
)
@click.option(
    "--dim",
    "dimensions",
    multiple=True,
    metavar="NAME=LENGTH",
    help="Length of another variable dimension, by symbol or INPUT.AXIS; repeatable.",
)
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the graph as an HTML page that works offline.",
)
@reporting
def inspect_model(model: str, batch: int, dimensions: Sequence[str], html: Path | None) -> Report:
    """Show the structure of MODEL, and how this server would run it.

    MODEL is an ONNX file, or NAME or NAME/VERSION in the folder of COHORT_MODELS. It is read in
    separate processes, limited by COHORT_INSPECTION_SECONDS and COHORT_INSPECTION_MB.

    \b
    cohort inspect model.onnx
    cohort inspect digits/2 --html graph.html
    cohort inspect encoder.onnx --batch 8 --dim sequence=128
    """
    from dataclasses import asdict

    from cohort_prepare.onnx_files import model_digest, model_size
    from cohort_prepare.overview import ViewRequest, look_at

    settings = settings_of_environment()
    path = _find(model, settings)
    request = ViewRequest(
        batch=batch,
        dimensions=dict(map(_length, dimensions)),
        page=html,
        seconds=settings.inspection_seconds,
        megabytes=settings.inspection_mb,
        max_megabytes=settings.max_model_mb,
        max_nodes=settings.max_nodes,
        custom_ops=settings.custom_ops,
    )
    with progress() as shown:
        shown.add_task(f"Reading {path.name}", total=None)
        file = {"path": str(path), "bytes": model_size(path), "sha256": model_digest(path)}
        structure, behavior = look_at(path, request)
    page = {} if html is None else {"html": str(html)}
    findings = {"model": file, **asdict(structure), **asdict(behavior), **page}
    return Report(True, findings, list(_shown(file, structure, behavior, html)))


def _find(model: str, settings: Settings) -> Path:
    """Return the model's file. Raises Misused if it does not exist."""
    from cohort.errors import did_you_mean, quoted
    from cohort_prepare.failures import Misused

    for path in (Path(model), settings.models_folder / model):
        numbers = (
            [one.name for one in path.iterdir() if one.name.isdecimal()] if path.is_dir() else []
        )
        highest = max(numbers, key=int, default=".")
        for file in (path, path / "model.onnx", path / highest / "model.onnx"):
            if file.is_file():
                return file
    folder = settings.models_folder
    known = [one.name for one in folder.iterdir() if one.is_dir()] if folder.is_dir() else []
    raise Misused(
        f"{quoted(model, 1000)} is neither an ONNX file nor a NAME or NAME/VERSION in {folder}"
        f"{did_you_mean(model.partition('/')[0], known)}"
    )


def _length(text: str) -> tuple[str, int]:
    from cohort.errors import quoted
    from cohort_prepare.failures import Misused

    name, equals, length = text.rpartition("=")
    if not (name and equals and length.isdecimal() and 0 < len(length) < MAX_DIGITS):
        raise Misused(f"--dim must be NAME=LENGTH, such as sequence=128, got {quoted(text)}")
    return name, int(length)


MAX_DIGITS = 10


def _shown(
    file: Mapping[str, object], structure: ModelStructure, behavior: Behavior, html: Path | None
) -> Iterator[RenderableType]:
    made_by = _one_line(" ".join(filter(None, (structure.producer, structure.producer_version))))
    opsets = ", ".join(f"{name or 'ai.onnx'} {n}" for name, n in structure.opsets.items())
    yield f"{file['path']}: {_size(file['bytes'])}, SHA-256 {file['sha256']}"
    yield f"IR version {structure.ir_version}; opsets {opsets or 'none'}" + (
        f"; made by {made_by}" if made_by else ""
    )
    yield _graph_line(structure)
    yield ""
    yield _table(
        ("", "name", "datatype", "shape"),
        [
            *(
                ("input" + (" (optional)" if one.optional else ""), *_value(one))
                for one in structure.inputs
            ),
            *(("output", *_value(one)) for one in structure.outputs),
        ],
    )
    yield _table(
        ("operator", "domain", "nodes", "since opset"),
        [
            (one.operator, one.domain or "ai.onnx", f"{one.count:,}", str(one.since or "?"))
            for one in structure.operators
        ],
    )
    yield from _weights(structure)
    yield from _flops(structure)
    for step in structure.history:
        difference = step.difference
        by = f"; outputs differ by up to {difference.max_absolute:.3g}" if difference else ""
        yield f"History: {step.step}: {step.what}{by}"
    for key, value in list(structure.metadata.items())[:_MAX_ROWS]:
        yield f"Metadata: {key} = {_one_line(value)}"
    yield from _behavior(behavior)
    if html is not None:
        yield f"Wrote {html}{f' ({structure.drawn})' if structure.drawn else ''}"


def _graph_line(structure: ModelStructure) -> str:
    graph = structure.graph
    parts = [f"Graph {_one_line(graph.name) or 'without a name'}: {graph.nodes:,} nodes"]
    if graph.subgraphs:
        parts.append(
            f"{graph.subgraph_nodes:,} in {graph.subgraphs:,} subgraphs up to {graph.depth} deep"
        )
    if graph.functions:
        parts.append(f"{len(graph.functions):,} functions")
    return ", ".join(parts)


def _value(one: ModelValue) -> tuple[str, str, str]:
    shape = "[…]" if one.shape is None else str([s if s is not None else "?" for s in one.shape])
    return one.name, one.datatype, shape.replace("'", "")


def _weights(structure: ModelStructure) -> Iterator[RenderableType]:
    weights = structure.parameters
    kept = f", {weights.sparse} sparse" if weights.sparse else ""
    outside = "".join(f"; {_size(n)} in {_one_line(f)}" for f, n in weights.external.items())
    yield f"Parameters: {weights.elements:,} in {_size(weights.bytes)}{kept}{outside}"
    if weights.largest:
        yield _table(
            ("weight", "datatype", "shape", "size"),
            [
                (one.name, one.datatype, str(list(one.shape)), _size(one.bytes))
                for one in weights.largest
            ],
        )
    if len(weights.datatypes) > 1:
        shares = (f"{one.datatype} {_size(one.bytes)}" for one in weights.datatypes)
        yield f"By datatype: {', '.join(shares)}"


def _flops(structure: ModelStructure) -> Iterator[str]:
    flops = structure.flops
    given = "".join(f", {name} {length:,}" for name, length in flops.dimensions.items())
    least = "at least " if flops.uncounted else ""
    yield f"FLOPs of a run of {flops.batch:,} row(s){given}: {least}{_count(flops.total)}"
    shares = (f"{one.operator} {_count(one.flops)}" for one in flops.operators[:_MAX_ROWS])
    if flops.operators:
        yield f"  by operator: {', '.join(shares)}"
    for one in flops.uncounted[:_MAX_ROWS]:
        yield f"  not counted: {one.operator} ({one.nodes:,} nodes): {one.reason}"
    if flops.open:
        open_dimensions = ", ".join(flops.open[:_MAX_ROWS])
        yield f"  open dimensions: {open_dimensions}; set one with --dim NAME=LENGTH"
    for note in flops.notes:
        yield f"  {note}"


def _behavior(behavior: Behavior) -> Iterator[str]:
    for outcome in behavior.chains:
        chain = " → ".join(outcome.chain)
        nodes = ", ".join(f"{count:,} nodes on {name}" for name, count in outcome.nodes.items())
        yield f"On {chain}: {outcome.problem or nodes or 'no node remains'}"
    served = behavior.serving
    if served.problem:
        yield f"In a server: cannot be loaded: {served.problem}"
        return
    if served.language_model:
        yield "In a server: a language model, whose answers are generated token by token"
        return
    batched = "requests are batched" if served.batched else f"one request per run: {served.reason}"
    yield f"In a server: {batched}"
    yield f"  rows, from the graph: {served.rows['verdict']}"
    yield from (f"  {_one_line(place)}" for place in served.row_places[:_MAX_ROWS])
    if served.advice:
        yield f"  to batch: {served.advice}"
    if served.open_dimensions:
        yield f"  requests choose {', '.join(served.open_dimensions[:_MAX_ROWS])}"
    if served.unpredictable:
        yield f"  run time depends on values: {served.unpredictable}"
    for name, datatype in served.unsent.items():
        yield f"  output {name} is omitted: {datatype} cannot be sent"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    from rich.text import Text

    from cohort.process.version_table import version_table

    table = version_table(*columns, whole=())
    for row in rows[:_MAX_ROWS]:
        table.add_row(*(Text(_one_line(cell)) for cell in row))
    if len(rows) > _MAX_ROWS:
        table.add_row(
            *(
                Text(one)
                for one in (f"and {len(rows) - _MAX_ROWS:,} more", *[""] * (len(columns) - 1))
            )
        )
    return table


def _one_line(text: str) -> str:
    from cohort.errors import printable

    return printable(text, 120)


def _size(size: object) -> str:
    value, unit = _scaled(float(str(size)), 1024, ("bytes", "KiB", "MiB", "GiB"))
    return f"{value:,.0f} {unit}" if unit == "bytes" else f"{value:,.1f} {unit}"


def _count(number: int) -> str:
    value, unit = _scaled(float(number), 1000, ("", "k", "M", "G", "T", "P"))
    return f"{value:,.3g}{unit}"


def _scaled(value: float, step: int, units: Sequence[str]) -> tuple[float, str]:
    place = 0
    while value >= step and place < len(units) - 1:
        value, place = value / step, place + 1
    return value, units[place]
