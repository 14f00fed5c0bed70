"""What a manifest promises of a model: measured here, on the very file that is published."""

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
from cohort_prepare.detecting import Say
from cohort_prepare.evaluating.accuracy import LabelCount, PairedAccuracy
from cohort_prepare.evaluating.cases import Cases, fit_cases, read_cases, read_labels, run_named
from cohort_prepare.evaluating.differences import largest, measure_pairs
from cohort_prepare.evaluating.graph_hints import Precision, read_hints
from cohort_prepare.evaluating.pairing import settle
from cohort_prepare.evaluating.timing import time_in_turn
from cohort_prepare.failures import Misused, Rejected
from cohort_prepare.onnx_files import options_for
from cohort_prepare.source import SourceModel
from cohort_prepare.verifying import verify_model

GENERATED_ROWS = 8

EXAMPLE_ROWS = 8
"""Of the second example; the first has one, so that both ways of a server's runs are seen."""

MAX_EXAMPLE_BYTES = 16 << 20
"""Of an example's arrays; a larger one is left out."""

ROWS_PER_RUN = 64
"""Rows of a run where all are run."""

SIZES = (1, 8, 32)
"""Rows of the runs that are timed."""


@dataclass(frozen=True, slots=True, eq=False)
class PublishEvidence:
    """What was seen.

    given: Whether the inputs are the user's; else they were generated.
    examples: To be run again where the version is loaded; none where it answers differently each
        time, or a row is too large.
    features: How the user's inputs are distributed; none of generated ones.
    difference, accuracy: None where there was no source, and no labels.
    latency: By rows.
    notes: What somebody who takes the model should know, a sentence each.
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
    say: Say = lambda _: None,
) -> PublishEvidence:
    """Run the model at `path`.

    examples: A .npz with inputs, and with outputs that are to be met; default None: generated ones.
    labels: The right answer for each row of them.
    source: The model that it was made of, or an ONNX file; default None: it is not compared.
    before: The model before the steps of this publishing, to be timed beside it.

    Raises Misused, and Rejected where the model does not give what is expected.
    """
    notes: list[str] = []
    precision = read_hints(path).precision
    session = open_session(path, options=options_for(path))
    try:
        cases = _cases(session, examples)
        say("Comparing outputs")
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
        say("Running the examples")
        kept = _examples(session, path, precision, cases, notes)
        say("Timing runs")
        latency = _latency(session, cases, before)
    except CohortError as error:
        if isinstance(error, (Misused, Rejected)):
            raise
        raise Rejected(f"the model fails on its examples: {error}") from error
    finally:
        session.close()
    features = describe_features(cases.inputs) if examples is not None else {}
    on = MeasuredOn(session.placement.active, ORT_VERSION, _machine())
    return PublishEvidence(
        *(examples is not None, kept, features, difference, accuracy, latency, on, tuple(notes))
    )


def _cases(session: Session, examples: Path | None) -> Cases:
    if examples is not None:
        cases = fit_cases(read_cases(examples), session.inputs, examples)
        if any(array.size == 0 for array in cases.inputs.values()):
            raise Misused(f"{examples} has no rows: some are needed to run the model")
        return cases
    trial = find_trial(session.run, session.inputs)
    if trial.problem:
        raise Misused(
            f"the model fails on all generated inputs: {trial.problem}; if it takes others, give "
            "them as --examples"
        )
    return Cases(trial.feeds(GENERATED_ROWS))


def _batches(session: Session, cases: Cases) -> Iterator[tuple[int, Cases]]:
    """The rows in runs of ROWS_PER_RUN; all in one where the model's rows do not vary."""
    return cases.batches(ROWS_PER_RUN) if _rows_vary(session) else iter([(0, cases)])


def _rows_vary(session: Session) -> bool:
    """Whether rows are along axis 0 of all inputs; the bytes of one file are no rows."""
    return bool(session.inputs) and all(
        spec.rows_vary and not is_stream(spec) for spec in session.inputs
    )


def _meet(session: Session, cases: Cases, examples: Path | None) -> None:
    """Raise Rejected where the outputs are not those that were given with the inputs."""
    batches = [run_named(session, batch.inputs) for _, batch in _batches(session, cases)]
    got = {name: _joined([one[name] for one in batches]) for name in batches[0]}
    expected, _ = settle(cases.outputs, got)
    if reason := explain(Pair(expected, got), Tolerance(1e-3, 1e-2)):
        raise Rejected(f"the model does not give the outputs in {examples}: {reason}")


def _joined(parts: Sequence[Array]) -> Array:
    """An output of all runs, by the rows of the file; of the last run where it has no rows."""
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
    """Compare with the source as `cohort verify` does; on the given rows, or on generated ones.

    Raises Rejected where they differ. Of a quantized model on generated inputs that is noted:
    these decide nothing, so that the least difference changes their argmax.
    """
    verified = verify_model(source, path, inputs=given, labels=labels)
    found = verified.found
    off = largest(found.outputs.values())
    measured = SourceDifference(off.max_absolute, off.max_relative, found.rows)
    problems = list(found.problems)
    if not (np.isfinite(measured.max_absolute) and np.isfinite(measured.max_relative)):
        problems.append("where one gives a finite number, the other does not")
    elif found.outputs and precision == "quantized" and verified.generated:
        notes += [f"on generated inputs: {problem}" for problem in problems]
        problems = []
    if problems:
        raise Rejected(
            f"the model differs from its source: {'; '.join(problems)}; 'cohort verify' shows where"
        )
    notes += found.notes
    return measured, verified.accuracy


def _examples(
    session: Session, path: Path, precision: Precision, cases: Cases, notes: list[str]
) -> tuple[Example, ...]:
    """One of a single row and one of several, with the outputs that the model gives here."""
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
                    f"an example of {size >> 20} MiB is left out: at most "
                    f"{MAX_EXAMPLE_BYTES >> 20} MiB are kept"
                )
                continue
            again = Pair(outputs, run_named(session, one.inputs))
            found = measure_pairs([again]).values()
            floats = [each for each in found if each.max_absolute is not None]
            if floats and not any(each.finite for each in floats):
                notes.append("an example shows little: NaN or infinity alone is given for it")
            if reason := explain(again, Tolerance()):
                notes.append(f"no example is kept, since each run gives other outputs: {reason}")
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
"""The least tolerance by what a model computes in: absolute, the same as a share of the output's
largest number, and relative. Processors multiply 8-bit integers in different ways, some of which
saturate, and differ by about a step of a scale."""

_MARGIN = 4.0
"""How much further another machine may be than the unoptimized graph is here."""


def _tolerance(precision: Precision, plain: Pair) -> Tolerance:
    """How far outputs may be from these where the same file is loaded elsewhere.

    plain: What the model gives here, and what its graph gives as it is written, where quantized
        operators are computed in floats: the same file in other arithmetic, as another processor
        has it.
    """
    absolute, share, relative = FLOORS[precision]
    found = measure_pairs([plain]).values()
    apart = [one.max_absolute or 0.0 for one in found]
    off = max((one for one in apart if np.isfinite(one)), default=0.0)
    size = max((one.size for one in found), default=0.0)
    return Tolerance(float(f"{max(absolute, share * size, _MARGIN * off):.3g}"), relative)


LATENCY_SECONDS = 0.5
"""Spent on timing runs, of all numbers of rows together."""


def _latency(session: Session, cases: Cases, before: Path | None) -> dict[int, Change]:
    """The median milliseconds of a run by rows, of the model and of that before it, in turn."""
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


def _machine() -> str:
    """The processor, its cores and the GPUs, as people say it."""
    lines = [" ".join(line.split()) for line in machine().splitlines()]
    wanted = [one for one in lines if re.match(r"model name|\d+ cores|Model:", one)]
    return "\n".join(one.partition(":")[2].strip() or one for one in wanted)
