"""Evidence for a manifest, measured here on the file that is published."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from cohort.codec.base64_json import is_stream
from cohort.comparing import Pair, Tolerance, explain
from cohort.errors import CohortError
from cohort.profiling import find_trial
from cohort.repository import (
    Change,
    Example,
    InputDistribution,
    MeasuredOn,
    PublishedAccuracy,
    SourceDifference,
    describe_features,
)
from cohort.session import ORT_VERSION, Session, machine, open_session
from cohort.tensors import Array
from cohort_prepare.detecting import OnProgress
from cohort_prepare.evaluating.accuracy import LabelCount, PairedAccuracy
from cohort_prepare.evaluating.cases import Cases, fit_cases, read_cases, read_labels, run_named
from cohort_prepare.evaluating.differences import largest, measure_pairs
from cohort_prepare.evaluating.graph_hints import Precision, read_hints
from cohort_prepare.evaluating.pairing import resolve_ties
from cohort_prepare.evaluating.timing import time_in_turn
from cohort_prepare.failures import Misused, Rejected
from cohort_prepare.onnx_files import options_for
from cohort_prepare.source import SourceModel
from cohort_prepare.verifying import verify_model

GENERATED_ROWS = 8

EXAMPLE_ROWS = 8
"""Rows of the second example; the first has one, so that both kinds of runs are tested."""

MAX_EXAMPLE_BYTES = 16 << 20
"""Maximum size of an example's arrays; larger examples are omitted."""

ROWS_PER_RUN = 64
"""Rows per run over all rows."""

SIZES = (1, 8, 32)
"""Batch sizes that are timed."""


@dataclass(frozen=True, slots=True, eq=False)
class PublishEvidence:
    """Evidence for a manifest.

    given: True if the inputs are the user's; False if they were generated.
    examples: Examples to run again when the version is loaded; none if outputs change from run to
        run, or a row is too large.
    features: Distribution of the user's inputs; none for generated ones.
    difference, accuracy: None without a source, or without labels.
    latency: By batch size.
    notes: Notes for users of the model.
    """

    given: bool
    examples: tuple[Example, ...]
    features: Mapping[str, InputDistribution]
    difference: SourceDifference | None
    accuracy: PublishedAccuracy | None
    latency: Mapping[int, Change]
    measured_on: MeasuredOn
    notes: tuple[str, ...]


def gather_evidence(
    path: Path,
    *,
    examples: Path | None = None,
    labels: Path | None = None,
    source: SourceModel | Path | None = None,
    before: Path | None = None,
    on_progress: OnProgress = lambda _: None,
) -> PublishEvidence:
    """Run the model at `path` and collect evidence.

    examples: A .npz with inputs and, optionally, expected outputs; default None: generated.
    labels: Correct answer for each row.
    source: Source model, or an ONNX file; default None: not compared.
    before: The model before the steps of this command, to compare run times.

    Raises Misused, and Rejected if the outputs are not as expected.
    """
    notes: list[str] = []
    precision = read_hints(path).precision
    session = open_session(path, options=options_for(path))
    try:
        cases = _cases(session, examples)
        on_progress("Comparing outputs")
        if cases.outputs:
            _meet(session, cases, examples)
        right = None if labels is None else read_labels(labels, cases.rows)
        accuracy = None if right is None else _count_right(session, cases, right)
        difference = None
        if source is not None:
            given = None if examples is None else (examples, Cases(cases.inputs))
            difference, paired = _verify(source, path, given, right, notes, precision)
            if accuracy is not None and paired is not None:
                accuracy = replace(accuracy, after=paired.after, before=paired.before)
        on_progress("Running the examples")
        kept = _examples(session, path, precision, cases, notes)
        on_progress("Timing runs")
        latency = _latency(session, cases, before)
    except CohortError as error:
        if isinstance(error, (Misused, Rejected)):
            raise
        raise Rejected(f"the model fails on its examples: {error}") from error
    finally:
        session.close()
    features = describe_features(cases.inputs) if examples is not None else {}
    on = measured_on(session.placement.active)
    return PublishEvidence(
        *(examples is not None, kept, features, difference, accuracy, latency, on, tuple(notes))
    )


def _cases(session: Session, examples: Path | None) -> Cases:
    if examples is not None:
        cases = fit_cases(read_cases(examples), session.inputs, examples)
        if any(array.size == 0 for array in cases.inputs.values()):
            raise Misused(f"{examples} has no rows")
        return cases
    trial = find_trial(session.run, session.inputs)
    if trial.problem:
        raise Misused(
            f"the model fails on all generated inputs: {trial.problem}; use --examples with valid "
            "ones"
        )
    return Cases(trial.feeds(GENERATED_ROWS))


def _batches(session: Session, cases: Cases) -> Iterator[tuple[int, Cases]]:
    """Yield the rows in runs of ROWS_PER_RUN; in one run if the number of rows is fixed."""
    return cases.batches(ROWS_PER_RUN) if _rows_vary(session) else iter([(0, cases)])


def _rows_vary(session: Session) -> bool:
    """Return True if rows are along axis 0 of all inputs, and no input is a file's bytes."""
    return bool(session.inputs) and all(
        spec.rows_vary and not is_stream(spec) for spec in session.inputs
    )


def _meet(session: Session, cases: Cases, examples: Path | None) -> None:
    """Raise Rejected if the outputs differ from the expected ones."""
    batches = [run_named(session, batch.inputs) for _, batch in _batches(session, cases)]
    got = {name: _joined([one[name] for one in batches]) for name in batches[0]}
    expected, _ = resolve_ties(cases.outputs, got)
    if reason := explain(Pair(expected, got), Tolerance(1e-3, 1e-2)):
        raise Rejected(f"the model's outputs differ from those in {examples}: {reason}")


def _joined(parts: Sequence[Array]) -> Array:
    """Concatenate an output of all runs; for outputs without rows, return the last run's."""
    together = len(parts) > 1 and all(part.ndim for part in parts)
    together = together and len({part.shape[1:] for part in parts}) == 1
    return np.concatenate(parts) if together else parts[-1]


def _count_right(session: Session, cases: Cases, labels: Array) -> PublishedAccuracy:
    count = LabelCount(labels, session.outputs)
    for start, batch in _batches(session, cases):
        got = run_named(session, batch.inputs)
        count.add(start, batch.rows, got, got)
    decision, found = count.decision, count.total()
    return PublishedAccuracy(decision.output if decision else "", found.rows, found.after)


def _verify(
    source: SourceModel | Path,
    path: Path,
    given: tuple[Path, Cases] | None,
    labels: Array | None,
    notes: list[str],
    precision: Precision,
) -> tuple[SourceDifference, PairedAccuracy | None]:
    """Compare with the source as `cohort verify` does, on given or generated rows.

    Raises Rejected if they differ. For a quantized model on generated inputs this is only a note:
    such inputs have no clear class, so tiny differences change the argmax.
    """
    verified = verify_model(source, path, inputs=given, labels=labels)
    found = verified.found
    off = largest(found.outputs.values())
    measured = SourceDifference(off.max_absolute, off.max_relative, found.rows)
    problems = list(found.problems)
    if not (np.isfinite(measured.max_absolute) and np.isfinite(measured.max_relative)):
        problems.append("one returns a finite number where the other does not")
    elif found.outputs and precision == "quantized" and verified.generated:
        notes += [f"on generated inputs: {problem}" for problem in problems]
        problems = []
    if problems:
        raise Rejected(
            f"the model differs from its source: {'; '.join(problems)}; see 'cohort verify'"
        )
    notes += found.notes
    return measured, verified.accuracy


def _examples(
    session: Session, path: Path, precision: Precision, cases: Cases, notes: list[str]
) -> tuple[Example, ...]:
    """Make an example of one row and one of several, with the model's outputs here."""
    candidates = [cases]
    if _rows_vary(session) and cases.rows:
        places = np.unique(np.linspace(0, cases.rows - 1, EXAMPLE_ROWS).astype(int))
        several = Cases({name: array[places] for name, array in cases.inputs.items()})
        candidates = [several.part(0, 1), several] if len(places) > 1 else [several]
    plain = open_session(path, options=replace(options_for(path), graph_optimization="none"))
    examples = []
    try:
        for one in candidates:
            outputs = run_named(session, one.inputs)
            size = sum(array.nbytes for side in (one.inputs, outputs) for array in side.values())
            if size > MAX_EXAMPLE_BYTES:
                notes.append(
                    f"an example of {size >> 20} MiB was omitted: the limit is "
                    f"{MAX_EXAMPLE_BYTES >> 20} MiB"
                )
                continue
            again = Pair(outputs, run_named(session, one.inputs))
            found = measure_pairs([again]).values()
            floats = [each for each in found if each.max_absolute is not None]
            if floats and not any(each.finite for each in floats):
                notes.append("an example proves little: all its outputs are NaN or infinity")
            if reason := explain(again, Tolerance()):
                notes.append(
                    f"examples were omitted, since outputs change from run to run: {reason}"
                )
                return ()
            tolerance = _tolerance(precision, Pair(outputs, run_named(plain, one.inputs)))
            examples.append(Example(one.inputs, outputs, tolerance))
    finally:
        plain.close()
    return tuple(examples)


FLOORS: Mapping[Precision, tuple[float, float, float]] = {
    "float32": (1e-5, 1e-5, 1e-4),
    "trees": (1e-5, 1e-5, 1e-4),
    "float16": (1e-3, 2e-3, 1e-2),
    "bfloat16": (1e-2, 1e-2, 5e-2),
    "quantized": (1e-3, 2e-2, 5e-2),
}
"""Minimum tolerance by datatype of the computation: absolute, as a share of the output's largest
number, and relative. Processors multiply 8-bit integers differently; some saturate, and differ by
about a step of a scale."""

_MARGIN = 4.0
"""Ratio of the difference on another machine to that of the unoptimized graph here."""


def _tolerance(precision: Precision, plain: Pair) -> Tolerance:
    """Return the tolerance for outputs of the same file on other machines.

    plain: The model's outputs here, and those of the unoptimized graph, where quantized operators
        are computed in floats: a model of the arithmetic of another processor.
    """
    absolute, share, relative = FLOORS[precision]
    found = measure_pairs([plain]).values()
    apart = [one.max_absolute or 0.0 for one in found]
    off = max((one for one in apart if np.isfinite(one)), default=0.0)
    size = max((one.size for one in found), default=0.0)
    return Tolerance(float(f"{max(absolute, share * size, _MARGIN * off):.3g}"), relative)


LATENCY_SECONDS = 0.5
"""Total time for timing runs."""


def _latency(session: Session, cases: Cases, before: Path | None) -> dict[int, Change]:
    """Return median run times in ms by rows, of the model and the one before, run alternately."""
    sizes = SIZES if _rows_vary(session) else (max(1, cases.rows),)
    feeds = {rows: cases.repeated(rows) if _rows_vary(session) else cases.inputs for rows in sizes}
    former = None if before is None else open_session(before)
    try:
        runs = {(rows, "after"): partial(session.run, feeds[rows]) for rows in sizes}
        if former is not None:
            runs |= {(rows, "before"): partial(former.run, feeds[rows]) for rows in sizes}
        taken = time_in_turn(runs, budget=LATENCY_SECONDS)
    finally:
        if former is not None:
            former.close()
    medians = {key: round(one.median * 1000, 4) for key, one in taken.items()}
    return {rows: Change(medians[rows, "after"], medians.get((rows, "before"))) for rows in sizes}


def measured_on(provider: str) -> MeasuredOn:
    """Describe this machine, its runtime and the active provider."""
    return MeasuredOn(provider, ORT_VERSION, _machine())


def _machine() -> str:
    """Describe the processor, its cores and the GPUs."""
    lines = [" ".join(line.split()) for line in machine().splitlines()]
    wanted = [one for one in lines if re.match(r"model name|\d+ cores|Model:", one)]
    return "\n".join(one.partition(":")[2].strip() or one for one in wanted)
