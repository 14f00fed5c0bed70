"""`cohort convert`: a framework's model as an ONNX model that gives the same."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cohort.comparing import Pair, Tolerance, compare, explain
from cohort.errors import CohortError
from cohort.profiling import find_trial, synthetic_inputs, why_unbatchable
from cohort.session import Session
from cohort.tensors import Arrays, TensorSpec, by_name
from cohort_prepare.cases import Cases, fit_cases
from cohort_prepare.detecting import Say
from cohort_prepare.failures import Misused, Rejected
from cohort_prepare.finishing import (
    DEFAULT_OPSET,
    check_export,
    onnx_opset,
    open_exported,
    open_rows,
    replace_class_maps,
    settle,
    write_description,
)
from cohort_prepare.onnx_files import model_digest, model_size, write_onnx, write_onnx_to
from cohort_prepare.source import SourceExport, SourceModel
from cohort_prepare.steps import StepDifference, StepRecord, add_step

SAME_CONVERSION = Tolerance(1e-4, 1e-3)
"""How far a converted model may be from its source: both compute in other orders, and classic
models in FP64 where ONNX has FP32."""

ROWS_TRIED = (1, 2, 3, 8)
"""Of each run that is compared, where no example says otherwise."""

BESIDES_THE_EXAMPLE = (1, 3)
"""Rows of further runs, where there is one: PyTorch is traced with two, which may be frozen."""


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


def convert_source(
    source: SourceModel,
    out: Path,
    *,
    example: tuple[Path, Cases] | None = None,
    opset: int | None = None,
    verify: bool = True,
    dynamic: Mapping[str, Mapping[str, str]] | None = None,
    say: Say = lambda _: None,
) -> Converted:
    """Write `source` as ONNX to `out`, over what is there.

    example: A file and the inputs in it, which the model is compared on; their names are the
        model's. Default None: made up.
    opset: The version of ONNX's operators; default None: as the framework's exporter likes it.
    verify: Whether to run both and compare; default yes.
    dynamic: Open dimensions of a PyTorch module's inputs besides the rows: labels by input and
        axis; default None: there are none.
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
        write_description(model, graph_name=export.what, classes=classes)
        write_onnx_to(model, made)
        session = open_exported(made)
        notes = [*export.notes, *_notes(session, fixed)]
        if opset is not None and onnx_opset(model) != opset:
            notes.append(f"its opset is {onnx_opset(model)}: the exporter writes no {opset}")
        difference, rows = None, 0
        if verify:
            say(f"Comparing with {source.framework.title}")
            cases = _cases(session, example, export)
            rows = sum(Cases(case).rows for case in cases)
            difference, more = _compare(source, session, cases)
            notes += more
        add_step(model, _record(source, export, onnx_opset(model), opset, difference))
        say("Writing the model")
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


def _cases(
    session: Session, example: tuple[Path, Cases] | None, export: SourceExport
) -> list[Arrays]:
    """The inputs to compare on: given, as the framework's side knows them, or made up."""
    if example is not None:
        path, cases = example
        fitted = fit_cases(cases, session.inputs, path)
        counts = {len(array) if array.ndim else 0 for array in fitted.inputs.values()}
        batched = all(spec.rows_vary for spec in session.inputs) and len(counts) == 1
        others = set(BESIDES_THE_EXAMPLE) - counts if batched else set()
        return [fitted.inputs, *(_resized(fitted.inputs, count) for count in sorted(others))]
    if export.sample:
        return [fit_cases(Cases(export.sample), session.inputs, Path("the sample")).inputs]
    trial = find_trial(session.run, session.inputs)
    if trial.problem:
        raise Rejected(
            f"no inputs could be made up that the model takes ({trial.problem}): give some with "
            "--example, or add --no-verify"
        )
    batched = all(spec.rows_vary for spec in session.inputs)
    rows = ROWS_TRIED if batched else (1,)
    made = [synthetic_inputs(session.inputs, count, trial.length) for count in rows]
    return [*made, *map(_negated, made)]


def _resized(inputs: Arrays, rows: int) -> Arrays:
    """So many rows: those that are there, again and again."""
    return {n: np.resize(a, (rows, *a.shape[1:])) for n, a in inputs.items()}


def _negated(inputs: Arrays) -> Arrays:
    """The same with other signs: a branch that was frozen when the model was traced shows."""
    return {n: np.negative(a) if a.dtype.kind == "f" else a for n, a in inputs.items()}


def _compare(
    source: SourceModel, session: Session, cases: Sequence[Arrays]
) -> tuple[StepDifference, list[str]]:
    """How far the two are apart, and what to know of it. Raises Rejected where that is too far."""
    pairs, labels = [], 0
    for case, expected in zip(cases, source.run(cases), strict=True):
        try:
            got = by_name(session.outputs, session.run(case))
        except CohortError as error:
            raise Rejected(f"the converted model does not run: {error}") from error
        settled, level = settle(expected, got)
        labels += level
        pairs.append(Pair(settled, got))
    for pair in pairs:
        if reason := explain(pair, SAME_CONVERSION):
            raise Rejected(
                f"the converted model differs from its source, and was not written: {reason}; "
                "--no-verify writes it all the same, and 'cohort verify' shows where it differs"
            )
    found = [one for differences in compare(pairs, SAME_CONVERSION) for one in differences]
    worst = StepDifference(
        max((one.largest or 0.0 for one in found), default=0.0),
        max((one.relative or 0.0 for one in found), default=0.0),
    )
    if not labels:
        return worst, []
    return worst, [f"in {labels} rows the two best classes are level, and rounding chose another"]
