"""All of `cohort verify`: open both models, make cases, compare, count labels, find causes."""

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
"""Significance level for a loss of accuracy."""


@dataclass(frozen=True, slots=True)
class Verified:
    """Result of `verify_model`.

    accuracy: Accuracy of both models; None without labels.
    generated: True if inputs were generated.
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
    inputs: A file and its rows; default None: generated.
    labels: Correct answer for each row of `inputs`; default None.
    tolerance: Allowed difference as a share of a row's largest value; default None: by datatype.
    generated: True to generate inputs in addition to the given ones; default False.
    option: Command-line option for inputs, for messages.
    seen: Called with each case, in order.

    Raises Misused if the two cannot be compared, and Rejected if one of them cannot be opened.
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
        if count is not None and case.start is not None:  # otherwise the rows are repeated
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
        found.notes[f"the outputs in {inputs[0]} are ignored: the source's outputs are used"] = None
    if not found.cases:
        layout = _layout(session, hints, reference, candidate, found) if inputs is None else ""
        if not layout:
            raise Misused(_nothing_compared(found, option, given=inputs is not None))
        found.problems.append(layout)
    if not found.rows_off and not any(one.finite for one in found.outputs.values()):
        raise Misused(
            "the source returns only NaN or infinity, so there is nothing to compare: use other "
            f"rows with {option}"
        )
    _judge(found, reference, candidate)
    accuracy = count.total() if count else None
    if accuracy and accuracy.after < accuracy.before and accuracy.chance < UNLIKELY:
        found.problems.append(
            f"the model is less accurate: {accuracy.after:.4g} of the rows, the source "
            f"{accuracy.before:.4g}; {accuracy.lost} rows were lost and {accuracy.gained} gained"
        )
    return Verified(found, accuracy, inputs is None)


CLASSIC = frozenset({"sklearn", "xgboost", "lightgbm"})
"""Frameworks whose models reject missing values unless they handle them."""


def _takes_missing(source: SourceModel | Path) -> bool:
    if isinstance(source, SourceModel):
        return source.framework.name in CLASSIC
    return _hints(source).takes_missing


def _hints(model: Path) -> GraphHints:
    if model.suffix == ".ort":  # not ONNX
        return GraphHints()
    return read_hints(model)


def _open(path: Path) -> Session:
    if not path.is_file():
        raise Misused(f"{path} is not a file")
    try:
        session = open_session(path)
    except LoadFailed as error:
        raise Rejected(f"ONNX Runtime cannot open {path}: {error}") from error
    for spec in session.inputs:
        if not spec.transportable:
            raise Misused(f"{path}: input {quoted(spec.name)} is {spec.datatype}, not a tensor")
    return session


def _onnx_run(path: Path, model: Session) -> RunCases:
    """Return a function that runs an ONNX source, with inputs matched by name or position."""
    source = _open(path)
    if len(source.inputs) != len(model.inputs):
        raise Misused(
            f"{path} has {len(source.inputs)} inputs, the model {len(model.inputs)}: they are not "
            "the same model"
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
    """Compare on `given` and generated cases, of a length that the model or the source accepts."""
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
    """Test if the source accepts images in the other layout, and then agrees."""
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
            f"the source reads input {quoted(images[0])} as {layout}, the model as {other}"
            + (", and agrees after transposing" if same else ", and differs even after transposing")
            + ": the model rejects the source's inputs; export it with the source's layout, or "
            "transpose in the client"
        )
    return ""


def _nothing_compared(found: Verification, option: str, *, given: bool) -> str:
    if not found.skipped:
        return "there are no rows to compare on, or fewer than a run of the model needs"
    title, reason = found.skipped[0]
    if given:
        return f"the source rejects the inputs ({title}): {reason}"
    return f"the source rejects all generated inputs ({reason}): use {option}"


def _judge(found: Verification, reference: RunCases, candidate: RunCases) -> None:
    """Add problems and notes to the result."""
    for one in found.kept:
        if one.case.purpose == "missing" and not one.counts and not one.agrees:
            found.notes[
                "with NaN among the inputs the two differ: if values can be missing, compare on "
                "such rows (--inputs), or replace them before the model"
            ] = None
        if one.case.purpose == "fixed" and one.refused:
            found.notes[
                "the model has a fixed number of rows, its source any: requests are not batched; "
                "export with a variable first dimension (dynamic axes)"
            ] = None
    if found.level:
        found.notes[
            f"in {found.level} rows the two best scores are equal, and rounding chose another class"
        ] = None
    for output in found.outputs.values():
        if output.values and not output.finite:
            found.notes[
                f"the source returns only NaN or infinity for output {quoted(output.name)}, which "
                "was not compared"
            ] = None
    if found.skipped:
        titles = ", ".join(title for title, _ in found.skipped)[:200]
        found.notes[f"not compared, since the source rejects them: {titles}"] = None
    if found.differs:
        found.problems += diagnose(found, reference, candidate)
    elif found.rows_off:
        found.notes[
            f"{found.rows_off} of {found.rows} rows differ, which is allowed for "
            f"{found.allowed.computation}"
        ] = None


def write_worst(found: Verification, model: Path, path: Path) -> str:
    """Write the inputs with the largest difference, and the source's outputs for them.

    Writes one row if it differs alone, otherwise its batch. Returns its title. Raises OSError.
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
