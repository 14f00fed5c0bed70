"""Run requests together and alone and compare: the second check that rows are independent.

The proof from the graph comes first. This finds errors that no graph shows: a kernel or a custom
operator that does not behave as specified.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from cohort.batching import FIRST_AXIS, Key, Outputs, RowsDoNotFollow, RunFeeds, Sample, Stacking
from cohort.comparing import ROUNDED_ONCE_MORE, SAME_ROW, Criterion, Pair, compare
from cohort.errors import CohortError
from cohort.tensors import Arrays, TensorSpec, by_name

FAILED = "several rows at once failed"


def influence(
    run: RunFeeds,
    requests: Sequence[Arrays],
    outputs: Sequence[TensorSpec],
    *,
    stacking: Stacking = FIRST_AXIS,
    trust: bool = False,
) -> str:
    """Describe how answers in a shared run differ from answers alone; return "" if they do not.

    requests: The requests; those that may share a run do. Requests that the model refuses are
        skipped. A group of fewer than two requests is not compared.
    stacking: Joins and splits the requests of a run; default: along axis 0.
    trust: True to check only the number of output rows; default False.
    """
    groups: defaultdict[Key, list[_Alone]] = defaultdict(list)
    for request in requests:
        rows, key = stacking.rows_and_key(request)
        if key is not None and (answer := _answer(run, request)) is not None:
            groups[key].append(_Alone(request, rows, answer))
    try:
        for group in groups.values():
            if len(group) > 1 and (reason := _influence(run, group, outputs, stacking, trust)):
                return reason
    except CohortError as error:
        return f"{FAILED}: {error}"
    return ""


class _Alone(NamedTuple):
    """A request, its number of rows, and its outputs alone."""

    inputs: Arrays
    rows: int
    answer: Outputs


def _influence(
    run: RunFeeds,
    group: Sequence[_Alone],
    outputs: Sequence[TensorSpec],
    stacking: Stacking,
    trust: bool,
) -> str:
    """Do the work of `influence` for one group of requests that have been run alone."""
    joined = stacking.join([one.inputs for one in group])
    rows = [one.rows for one in group]
    try:
        parts = stacking.split(run(joined.feeds), rows, joined)
    except RowsDoNotFollow as error:
        name = outputs[error.position].name
        return f"output {name!r} has shape {error.shape} for {sum(rows)} rows of input"
    if trust:
        return ""
    if changed := changed_output(outputs, group[0].answer, run(group[0].inputs)):
        return f"it gives another result each time: output {changed!r} of a row changes"
    for place in _differing(outputs, [one.answer for one in group], parts):
        one = group[place]
        sample = Sample(one.inputs, parts[place], place, len(group))
        if reason := influenced(run, sample, one.answer, outputs, stacking):
            return reason
    return ""


def influenced(
    run: RunFeeds,
    sample: Sample,
    alone: Outputs,
    outputs: Sequence[TensorSpec],
    stacking: Stacking = FIRST_AXIS,
    *,
    proven: bool = True,
) -> str:
    """Describe how other requests, or the run's size, changed an answer; return "" if not.

    `alone` is the answer of the same request alone, which differs. The request runs again at the
    same place, in a run of copies of itself. Rounding by the run's size is the same there, so any
    remaining difference comes from the other requests.

    proven: True if rows are proven to be independent (the default). Then the number of rows changes
        an answer only by rounding. An output that is rounded to whole numbers may change by one.

    Raises any error that `run` raises, and RowsDoNotFollow.
    """
    inputs, answer, place, together = sample
    joined = stacking.join([inputs] * together)
    rows = stacking.rows_and_key(inputs)[0]
    copies = stacking.split(run(joined.feeds), [rows] * together, joined)[place]
    if changed := changed_output(outputs, copies, answer):
        return f"rows influence each other: output {changed!r} of a row changes"
    if changed := changed_output(outputs, alone, answer, ROUNDED_ONCE_MORE if proven else SAME_ROW):
        return f"a run of {together} rows gives other results: output {changed!r} of a row changes"
    return ""


def changed_output(
    outputs: Sequence[TensorSpec], expected: Outputs, got: Outputs, criterion: Criterion = SAME_ROW
) -> str:
    """Return the name of the first output that differs by more than rounding; "" if none does."""
    (found,) = compare(_pairs(outputs, [expected], [got]), criterion)
    return next((one.output for one in found if one.disagrees), "")


def _answer(run: RunFeeds, request: Arrays) -> Outputs | None:
    """Return the outputs of a request alone, or None if the model refuses it."""
    try:
        return run(request)
    except CohortError:
        return None


def _differing(
    outputs: Sequence[TensorSpec], expected: Sequence[Outputs], got: Sequence[Outputs]
) -> list[int]:
    """Return the places of the answers that differ, relative to the size of the numbers in all."""
    found = compare(_pairs(outputs, expected, got), SAME_ROW)
    return [place for place, each in enumerate(found) if any(one.disagrees for one in each)]


def _pairs(
    outputs: Sequence[TensorSpec], expected: Sequence[Outputs], got: Sequence[Outputs]
) -> list[Pair]:
    return [
        Pair(by_name(outputs, one), by_name(outputs, other))
        for one, other in zip(expected, got, strict=True)
    ]
