"""The whole of `cohort verify`: open both, make the cases, compare, count labels, find reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cohort.errors import LoadFailed, quoted
from cohort.profiling import find_trial
from cohort.session import Session, open_session
from cohort.tensors import Array, TensorSpec
from cohort_prepare.evaluating.accuracy import LabelCount, PairedAccuracy
from cohort_prepare.evaluating.cases import Cases, fit_cases, write_cases
from cohort_prepare.evaluating.generated import LENGTHS_TRIED, Case, generated_cases, given_cases
from cohort_prepare.evaluating.graph_hints import GraphHints, read_hints
from cohort_prepare.failures import Misused, Rejected
from cohort_prepare.onnx_files import temporary_folder
from cohort_prepare.source import SourceModel
from cohort_prepare.verifying.comparison import (
    ComparedCase,
    RunCases,
    Verification,
    compare_models,
    session_run,
)
from cohort_prepare.verifying.diagnosis import diagnose
from cohort_prepare.verifying.output_mistakes import same_outputs
from cohort_prepare.verifying.tolerance import allowed_for

UNLIKELY = 0.05
"""A worse accuracy that chance gives less often than this is a difference."""


@dataclass(frozen=True, slots=True)
class Verified:
    """What was found.

    accuracy: Where labels were given; else None.
    generated: Whether inputs were.
    """

    found: Verification
    accuracy: PairedAccuracy | None
    generated: bool


def verify_model(
    source: SourceModel | Path,
    model: Path,
    *,
    inputs: tuple[Path, Cases] | None = None,
    labels: Array | None = None,
    tolerance: float | None = None,
    generated: bool = False,
    option: str = "--inputs",
    seen: Callable[[ComparedCase], None] = lambda _: None,
) -> Verified:
    """Compare the ONNX model at `model` with its source.

    source: A framework's model, or an ONNX file.
    inputs: A file and the rows in it; default None: generated.
    labels: The right answer for each row of `inputs`; default None.
    tolerance: The share of a row's largest value that floats may be off by; default None: by what
        the model computes in.
    generated: Whether inputs are generated besides the given ones; default no.
    option: What gives inputs, for messages.
    seen: Told each case, in order.

    Raises Misused where the two cannot be compared, and Rejected where one of them does not open.
    """
    hints = _hints(model)
    if isinstance(source, Path):
        hints = replace(hints, thresholds=(*hints.thresholds, *_hints(source).thresholds))
    session = _open(model)
    reference = source.run_each if isinstance(source, SourceModel) else _onnx_run(source, session)
    candidate = session_run(session)
    allowed = allowed_for(hints, session.outputs, share=tolerance)
    count = None if labels is None else LabelCount(labels, session.outputs)

    def look(compared: ComparedCase) -> None:
        seen(compared)
        case = compared.case
        if count is not None and case.start is not None:  # else the rows come again
            count.add(case.start, case.rows, compared.expected, compared.got)

    missing = hints.takes_missing or _takes_missing(source)

    def compared_on(cases: Sequence[Case] | Iterator[Case]) -> Verification:
        return compare_models(reference, candidate, cases, allowed, missing=missing, seen=look)

    given: list[Case] = []
    if inputs is not None:
        path, cases = inputs
        fitted = fit_cases(cases, [_open_rows(one) for one in session.inputs], path)
        given = list(given_cases(fitted, fixed_rows=hints.fixed_rows))
    if inputs is None or generated:
        found = _on_generated(session, hints, reference, compared_on, given)
    else:
        found = compared_on(given)
    if inputs is not None and inputs[1].outputs:
        found.notes[f"the outputs in {inputs[0]} are not read: the source gives its own"] = None
    if not found.cases:
        layout = _layout(session, hints, reference, candidate, found) if inputs is None else ""
        if not layout:
            raise Misused(_nothing_compared(found, option, given=inputs is not None))
        found.problems.append(layout)
    if not found.rows_off and not any(one.finite for one in found.outputs.values()):
        raise Misused(
            "the source gives NaN or infinity alone for all rows, so there is nothing to compare: "
            f"give other rows with {option}"
        )
    _judge(found, reference, candidate)
    accuracy = count.total() if count else None
    if accuracy and accuracy.after < accuracy.before and accuracy.chance < UNLIKELY:
        found.problems.append(
            f"the model is right less often: {accuracy.after:.4g} of the rows, the source "
            f"{accuracy.before:.4g}; {accuracy.lost} rows were lost and {accuracy.gained} won"
        )
    return Verified(found, accuracy, inputs is None)


CLASSIC = frozenset({"sklearn", "xgboost", "lightgbm"})
"""Frameworks whose models refuse missing values unless they handle them."""


def _takes_missing(source: SourceModel | Path) -> bool:
    if isinstance(source, SourceModel):
        return source.framework.name in CLASSIC
    return _hints(source).takes_missing


def _hints(model: Path) -> GraphHints:
    if model.suffix == ".ort":  # no ONNX
        return GraphHints()
    return read_hints(model)


def _open(path: Path) -> Session:
    if not path.is_file():
        raise Misused(f"{path} is no file")
    try:
        session = open_session(path)
    except LoadFailed as error:
        raise Rejected(f"ONNX Runtime does not open {path}: {error}") from error
    for spec in session.inputs:
        if not spec.transportable:
            raise Misused(f"{path}: input {quoted(spec.name)} is {spec.datatype}, no tensor")
    return session


def _onnx_run(path: Path, model: Session) -> RunCases:
    """Runs of a source in ONNX, its inputs by the model's names: by name, else by place."""
    source = _open(path)
    if len(source.inputs) != len(model.inputs):
        raise Misused(
            f"{path} takes {len(source.inputs)} inputs, the model {len(model.inputs)}: they are "
            "not the same model"
        )
    theirs = {spec.name for spec in source.inputs}
    left = [spec.name for spec in source.inputs if spec.name not in _names(model.inputs)]
    names = {
        spec.name: left.pop(0) if spec.name not in theirs else spec.name for spec in model.inputs
    }
    return session_run(source, names)


def _names(specs: Sequence[TensorSpec]) -> set[str]:
    return {spec.name for spec in specs}


def _open_rows(spec: TensorSpec) -> TensorSpec:
    return replace(spec, shape=(None, *spec.shape[1:])) if spec.shape else spec


def _on_generated(
    session: Session,
    hints: GraphHints,
    reference: RunCases,
    compared_on: Callable[[Sequence[Case]], Verification],
    given: Sequence[Case],
) -> Verification:
    """Of the length that the model takes, or else one that the source does; on `given`, too."""
    length = find_trial(session.run, session.inputs).length or LENGTHS_TRIED[0]
    found = compared_on([*given, *_cases(session, hints, length)])
    if found.cases or not any(one.length for one in _cases(session, hints, length)):
        return found
    tries = [generated_cases(session.inputs, hints, length=one)[0].inputs for one in LENGTHS_TRIED]
    for other, answer in zip(LENGTHS_TRIED, reference(tries), strict=True):
        if not isinstance(answer, str):
            return compared_on([*given, *_cases(session, hints, other)])
    return found


def _cases(session: Session, hints: GraphHints, length: int) -> list[Case]:
    cases = generated_cases(session.inputs, hints, length=length)
    if hints.fixed_rows:
        first = cases[0].inputs
        doubled = {name: np.concatenate([array, array]) for name, array in first.items()}
        rows = 2 * hints.fixed_rows
        cases.append(Case(f"{rows} rows", doubled, rows, "fixed"))
    return cases


def _layout(
    session: Session,
    hints: GraphHints,
    reference: RunCases,
    candidate: RunCases,
    found: Verification,
) -> str:
    """Whether the source takes images in the other layout, and then gives the same."""
    case = generated_cases(session.inputs, hints)[0].inputs
    images = [name for name, array in case.items() if array.ndim == 4]
    if not images:
        return ""
    for axes, layout in (((0, 2, 3, 1), "NHWC"), ((0, 3, 1, 2), "NCHW")):
        turned = {n: a.transpose(axes) if n in images else a for n, a in case.items()}
        (expected,) = reference([{n: np.ascontiguousarray(a) for n, a in turned.items()}])
        if isinstance(expected, str):
            continue
        (got,) = candidate([case])
        same = same_outputs(expected, got, found.allowed)
        other = "NCHW" if layout == "NHWC" else "NHWC"
        return (
            f"the source takes input {quoted(images[0])} as {layout}, the model as {other}"
            + (", and gives the same then" if same else ", and even so they differ")
            + ": callers who send what the source takes are refused; export it with the source's "
            "layout, or tell callers to transpose"
        )
    return ""


def _nothing_compared(found: Verification, option: str, *, given: bool) -> str:
    if not found.skipped:
        return "there are no rows to compare on, or fewer than the model takes in one run"
    title, reason = found.skipped[0]
    if given:
        return f"the source does not take the inputs ({title}): {reason}"
    return f"the source takes none of the generated inputs ({reason}): give some with {option}"


def _judge(found: Verification, reference: RunCases, candidate: RunCases) -> None:
    """Fill in problems and notes."""
    for one in found.kept:
        if one.case.purpose == "missing" and not one.counts and not one.agrees:
            found.notes[
                "with NaN among the inputs the two differ: where values can be missing, compare on "
                "rows that show it (--inputs), or replace them before the model is called"
            ] = None
        if one.case.purpose == "fixed" and one.refused:
            found.notes[
                "the model takes a fixed number of rows, its source any: requests are not batched; "
                "export with an open first dimension (dynamic axes)"
            ] = None
    if found.level:
        found.notes[
            f"in {found.level} rows the two best classes are level, and rounding chose another"
        ] = None
    for output in found.outputs.values():
        if output.values and not output.finite:
            found.notes[
                f"the source gives NaN or infinity alone for output {quoted(output.name)}: nothing "
                "was compared of it"
            ] = None
    if found.skipped:
        titles = ", ".join(title for title, _ in found.skipped)[:200]
        found.notes[f"not compared, since the source refuses them: {titles}"] = None
    if found.differs:
        found.problems += diagnose(found, reference, candidate)
    elif found.rows_off:
        found.notes[
            f"{found.rows_off} of {found.rows} rows are off, which is allowed for "
            f"{found.allowed.computation}"
        ] = None


def write_worst(found: Verification, model: Path, path: Path) -> str:
    """Write the inputs that show the largest difference, with what the source gives for them.

    One row where it shows alone, else its batch. Says which. Raises OSError.
    """
    if found.worst is None:
        raise ValueError("there is no difference")
    compared, row = found.worst
    case = compared.case
    by_row = [*case.inputs.values(), *compared.expected.values()]
    cases = Cases(case.inputs, compared.expected)
    title = case.title
    if case.rows > 1 and all(a.ndim and len(a) == case.rows for a in by_row):
        alone = cases.part(row, row + 1)
        (answer,) = session_run(_open(model))([dict(alone.inputs)])
        if isinstance(answer, str) or not same_outputs(dict(alone.outputs), answer, found.allowed):
            cases = alone
            title = (
                f"row {row} of {case.title}" if case.start is None else f"row {case.start + row}"
            )
    with temporary_folder(path.absolute().parent) as folder:
        made = folder / "worst.npz"
        write_cases(made, cases)
        made.replace(path)
    return title
