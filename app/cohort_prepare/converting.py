"""`cohort convert`: convert a framework's model to an equivalent ONNX model."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cohort.comparing import Pair
from cohort.errors import quoted_names
from cohort.profiling import why_unbatchable
from cohort.session import Session
from cohort.tensors import TensorSpec
from cohort_prepare.beside import check_beside, write_beside
from cohort_prepare.detecting import OnProgress
from cohort_prepare.evaluating.cases import Cases, fit_cases
from cohort_prepare.evaluating.differences import Differences, add_pair, largest
from cohort_prepare.failures import Misused, Rejected
from cohort_prepare.finishing import (
    DEFAULT_OPSET,
    check_export,
    onnx_opset,
    open_exported,
    open_rows,
    replace_class_maps,
    scores_of,
    splits_by_category,
    write_description,
)
from cohort_prepare.onnx_files import model_digest, model_size, write_onnx, write_onnx_to
from cohort_prepare.source import SourceExport, SourceModel
from cohort_prepare.steps import StepDifference, StepRecord, add_step
from cohort_prepare.verifying import ComparedCase, verify_model

MIN_ROWS_GIVEN = 3
"""Examples are repeated up to this number of rows: PyTorch traces with two, a frozen size."""


@dataclass(frozen=True, slots=True)
class Converted:
    """Result of a conversion.

    inputs, outputs: As the server sees them.
    opset: ONNX opset version.
    export: Description from the framework's adapter.
    notes: Notes for the user.
    difference: Difference from the source on the compared rows; None if not compared.
    rows: Number of rows compared.
    size: Bytes of the file with external data.
    sha256: Digest of the model.
    beside: Files written next to the model, such as its tokenizer.
    """

    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    opset: int
    export: SourceExport
    notes: Sequence[str]
    difference: StepDifference | None
    rows: int
    size: int
    sha256: str
    beside: Sequence[Path] = ()


def convert_source(
    source: SourceModel,
    out: Path,
    *,
    example: tuple[Path, Cases] | None = None,
    opset: int | None = None,
    verify: bool = True,
    dynamic: Mapping[str, Mapping[str, str]] | None = None,
    labels: Sequence[str] = (),
    on_progress: OnProgress = lambda _: None,
) -> Converted:
    """Convert `source` to ONNX and write it to `out`, which may exist.

    example: A file and its inputs, to compare on; their names become the model's. Default None:
        generated.
    opset: ONNX opset version; default None: the exporter's preferred one.
    verify: True to run both models and compare; default True.
    dynamic: Variable dimensions of a PyTorch module's inputs in addition to rows: labels by input
        and axis; default None.
    labels: Class names, one for each column of the scores; default none.
    on_progress: Called with a description of each step.

    Raises Misused and Rejected, and OSError if `out` cannot be written.
    """
    _check_writable(out)
    with tempfile.TemporaryDirectory(prefix="cohort-") as name:
        folder = Path(name)
        made = folder / "model.onnx"
        on_progress(f"Converting with {source.framework.title}")
        export = source.export(
            made,
            opset=opset,
            example=example[1].inputs if example else None,
            options={"dynamic": _dynamic(source, dynamic)} if dynamic else None,
        )
        if not made.is_file():
            raise Rejected(f"{source.framework.title} wrote no model")
        on_progress("Checking the model")
        maps = replace_class_maps(made)
        model = check_export(made, opset or DEFAULT_OPSET)
        fixed = open_rows(model, folder)
        classes = {**maps, **export.classes}
        if labels:
            classes[scores_of(model, len(labels))] = tuple(labels)
        write_description(
            model,
            graph_name=export.what,
            classes=classes,
            columns=export.columns,
            missing=export.missing,
            categories=export.categories,
        )
        write_onnx_to(model, made)
        session = open_exported(made)
        notes = [*export.notes, *_notes(session, fixed), *_gap_notes(export.missing)]
        notes += _category_notes(export.categories)
        if opset is not None and onnx_opset(model) != opset:
            notes.append(f"its opset is {onnx_opset(model)}: the exporter cannot write {opset}")
        difference, rows = None, 0
        if verify:
            on_progress(f"Comparing with {source.framework.title}")
            rows_given = _given(session, example, export)
            generated = rows_given is None or not splits_by_category(model)
            difference, rows, more = _verify(source, made, rows_given, generated=generated)
            notes += more
        add_step(model, _record(source, export, onnx_opset(model), opset, difference))
        on_progress("Writing the model")
        check_beside(export, out)
        beside = write_beside(export, folder, out)
        write_onnx(model, out)
    return Converted(
        session.inputs,
        session.outputs,
        opset=onnx_opset(model),
        export=replace(export, classes=classes),
        notes=notes,
        difference=difference,
        rows=rows,
        size=model_size(out),
        sha256=model_digest(out),
        beside=beside,
    )


def _dynamic(
    source: SourceModel, dynamic: Mapping[str, Mapping[str, str]]
) -> Mapping[str, Mapping[str, str]]:
    if source.framework.name != "pytorch" or source.reference.text.endswith(".pt2"):
        raise Misused(
            "--dynamic is for PyTorch modules; other models, and programs of torch.export, define "
            "their own variable dimensions"
        )
    return dynamic


def _check_writable(out: Path) -> None:
    """Raise Misused if `out` cannot be written, before the long work starts."""
    if out.is_dir():
        raise Misused(f"{out} is a folder: use a file in it, {out / 'model.onnx'}")
    there = next(one for one in out.absolute().parents if one.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise Misused(f"{out} cannot be written: {there} is not a writable folder")


def _notes(session: Session, fixed: str) -> list[str]:
    if fixed:
        return [f"{fixed}; requests are not batched"]
    reason = why_unbatchable(session.inputs, session.outputs, session.rows)
    return [f"requests are not batched: {reason}"] if reason else []


def _gap_notes(missing: Mapping[str, str]) -> list[str]:
    return [
        f"a missing {name} is {value!r}, which the server fills in for null: ONNX text has no null"
        for name, value in missing.items()
    ]


def _category_notes(
    categories: Mapping[str, Sequence[str] | Sequence[float]],
) -> list[str]:
    return [
        f"callers send {quoted_names(map(str, known))} for {name}; the server converts them to the "
        "model's codes"
        for name, known in categories.items()
    ]


def _record(
    source: SourceModel,
    export: SourceExport,
    opset: int,
    asked: int | None,
    difference: StepDifference | None,
) -> StepRecord:
    title = source.framework.title
    what = export.what if title in export.what else f"{title} {export.what}"
    return StepRecord(
        "convert",
        f"{what} to opset {opset}",
        framework=source.framework.name,
        versions=export.versions,
        options={} if asked is None else {"opset": asked},
        difference=difference,
    )


def _given(
    session: Session, example: tuple[Path, Cases] | None, export: SourceExport
) -> tuple[Path, Cases] | None:
    """Return the rows to compare on: the user's example, or a sample from the adapter.

    None if there are no such rows.
    """
    if example is None and not export.sample:
        return None
    path, cases = example or (Path("the sample"), Cases(export.sample))
    fitted = fit_cases(cases, session.inputs, path)
    if fitted.by_row and all(spec.rows_vary for spec in session.inputs):
        fitted = Cases(fitted.repeated(max(fitted.rows, MIN_ROWS_GIVEN)))
    return path, Cases(fitted.inputs)


def _verify(
    source: SourceModel, made: Path, given: tuple[Path, Cases] | None, *, generated: bool
) -> tuple[StepDifference, int, list[str]]:
    """Return the difference between the two, the number of compared rows, and notes.

    If rows are given, only they count: generated values may be of any size. Without `generated`, no
    values are generated, since they may not be valid category codes.

    Raises Rejected if a row differs too much.
    """
    outputs: dict[str, Differences] = {}
    rows: list[int] = []

    def look(one: ComparedCase) -> None:
        if one.got is not None and one.counts and (given is None or one.case.start is not None):
            add_pair(outputs, Pair(one.expected, one.got))
            rows.append(one.case.rows)

    found = verify_model(
        source, made, inputs=given, generated=generated, option="--example", seen=look
    ).found
    if found.problems or found.rows_off:
        reason = "; ".join(found.problems) or f"in {found.rows_off} of {found.rows} rows"
        raise Rejected(
            f"the converted model differs from its source and was not written: {reason}; "
            "use --no-verify to write it anyway, or 'cohort verify' to find the cause"
        )
    return largest(outputs.values()), sum(rows), list(found.notes)
