"""Run requests together and alone, and compare: the second look at whether rows are independent.

The proof from the graph comes first. This finds what no graph shows: a kernel or a custom operator
that does something else than it says.
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
    """Say how the answers to requests that share a run differ from those alone; "" where not.

    requests: Those that may share a run do. Those that the model refuses do not count; nothing is
        said where fewer than two are left.
    stacking: How they share one; default: along axis 0.
    trust: Whether to check the number of output rows only; default False.
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
    """A request of so many rows, and its outputs alone."""

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
    """The same for requests that may share a run, and have been run alone."""
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
    """Say whether others changed the answer to a request that `alone` is another one; "" if not.

    The request is run once more, in the same place of a run of as many copies of it. All that runs
    of this size round in another way is the same there, so what still differs is the others' doing.

    proven: Whether rows are proven to be independent; default True. Then the number of rows changes
        an answer by rounding only, which one that is rounded to whole numbers shows by a whole one.

    Raises what `run` raises, and RowsDoNotFollow.
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
    """The name of the first output that differs by more than rounding, "" where none does."""
    (found,) = compare(_pairs(outputs, [expected], [got]), criterion)
    return next((one.output for one in found if one.disagrees), "")


def _answer(run: RunFeeds, request: Arrays) -> Outputs | None:
    """The outputs of a request alone; None where the model refuses it."""
    try:
        return run(request)
    except CohortError:
        return None


def _differing(
    outputs: Sequence[TensorSpec], expected: Sequence[Outputs], got: Sequence[Outputs]
) -> list[int]:
    """The places of those that differ, compared with how large numbers are in the others."""
    found = compare(_pairs(outputs, expected, got), SAME_ROW)
    return [place for place, each in enumerate(found) if any(one.disagrees for one in each)]


def _pairs(
    outputs: Sequence[TensorSpec], expected: Sequence[Outputs], got: Sequence[Outputs]
) -> list[Pair]:
    return [
        Pair(by_name(outputs, one), by_name(outputs, other))
        for one, other in zip(expected, got, strict=True)
    ]
