"""`cohort convert`: a framework's model as an ONNX model that gives the same."""

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
from cohort_prepare.detecting import Say
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

LEAST_ROWS_GIVEN = 3
"""Rows of an example are repeated up to here: PyTorch is traced with two, which may be frozen."""


@dataclass(frozen=True, slots=True)
class Converted:
    """A model that was converted.

    inputs, outputs: As the server sees them.
    opset: The version of ONNX's operators.
    export: What the framework's side says.
    notes: Sentences that the user should read.
    difference: How far it is from its source on the rows that were tried; None: not compared.
    rows: How many rows were compared.
    size: Of the file, with external data, in bytes.
    sha256: The model's digest.
    beside: The files that were written beside it, such as its tokenizer.
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
    say: Say = lambda _: None,
) -> Converted:
    """Write `source` as ONNX to `out`, over what is there.

    example: A file and the inputs in it, which the model is compared on; their names are the
        model's. Default None: made up.
    opset: The version of ONNX's operators; default None: as the framework's exporter likes it.
    verify: Whether to run both and compare; default yes.
    dynamic: Open dimensions of a PyTorch module's inputs besides the rows: labels by input and
        axis; default None: there are none.
    labels: The names of its classes, one for each column of its scores; default none.
    say: Told what is done now.

    Raises Misused and Rejected, and OSError where it cannot be written.
    """
    _check_writable(out)
    with tempfile.TemporaryDirectory(prefix="cohort-") as name:
        folder = Path(name)
        made = folder / "model.onnx"
        say(f"Converting with {source.framework.title}")
        export = source.export(
            made,
            opset=opset,
            example=example[1].inputs if example else None,
            options={"dynamic": _dynamic(source, dynamic)} if dynamic else None,
        )
        if not made.is_file():
            raise Rejected(f"{source.framework.title} wrote no model")
        say("Checking the model")
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
            notes.append(f"its opset is {onnx_opset(model)}: the exporter writes no {opset}")
        difference, rows = None, 0
        if verify:
            say(f"Comparing with {source.framework.title}")
            rows_given = _given(session, example, export)
            generated = rows_given is None or not splits_by_category(model)
            difference, rows, more = _verify(source, made, rows_given, generated=generated)
            notes += more
        add_step(model, _record(source, export, onnx_opset(model), opset, difference))
        say("Writing the model")
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
            "--dynamic is for PyTorch's modules: other models, and programs of torch.export, say "
            "themselves which dimensions are open"
        )
    return dynamic


def _check_writable(out: Path) -> None:
    """Raise Misused where `out` could not be written, before the long work."""
    if out.is_dir():
        raise Misused(f"{out} is a folder: name a file in it, {out / 'model.onnx'}")
    there = next(one for one in out.absolute().parents if one.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise Misused(f"{out} cannot be written: {there} is no folder that you may write to")


def _notes(session: Session, fixed: str) -> list[str]:
    if fixed:
        return [f"{fixed}; requests are not batched"]
    reason = why_unbatchable(session.inputs, session.outputs, session.rows)
    return [f"requests are not batched: {reason}"] if reason else []


def _gap_notes(missing: Mapping[str, str]) -> list[str]:
    return [
        f"a missing {name} is {value!r}, which the server puts there for null: ONNX's text has none"
        for name, value in missing.items()
    ]


def _category_notes(
    categories: Mapping[str, Sequence[str] | Sequence[float]],
) -> list[str]:
    return [
        f"callers send {quoted_names(map(str, known))} for {name}, of which the server makes the "
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
    """The rows to compare on besides generated ones: the user's, or as the framework's side knows.

    None: there are none.
    """
    if example is None and not export.sample:
        return None
    path, cases = example or (Path("the sample"), Cases(export.sample))
    fitted = fit_cases(cases, session.inputs, path)
    if fitted.by_row and all(spec.rows_vary for spec in session.inputs):
        fitted = Cases(fitted.repeated(max(fitted.rows, LEAST_ROWS_GIVEN)))
    return path, Cases(fitted.inputs)


def _verify(
    source: SourceModel, made: Path, given: tuple[Path, Cases] | None, *, generated: bool
) -> tuple[StepDifference, int, list[str]]:
    """How far the two are apart, on how many rows, and what to know of it.

    Both are of the given rows alone, where there are some: generated ones are of any size.
    Without `generated` there are no others: what is generated may be no codes of categories.

    Raises Rejected where any row is too far off.
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
            f"the converted model differs from its source, and was not written: {reason}; "
            "--no-verify writes it all the same, and 'cohort verify' shows where it differs"
        )
    return largest(outputs.values()), sum(rows), list(found.notes)
