"""Run requests together and alone, and compare: the second look at whether rows are independent.

The proof from the graph comes first. This finds what no graph shows: a kernel or a custom operator
that does something else than it says.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.batching import FIRST_AXIS, Outputs, RowsDoNotFollow, Sample, Stacking
from app.comparing import ROUNDING, SAME_ROW, Criterion, Pair, compare
from app.errors import CohortError
from app.profiling.trial import RunFeeds
from app.tensors import Arrays, TensorSpec, by_name

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

    requests: Requests of one row each, which may share a run. Those that the model refuses do not
        count; nothing is said where fewer than two are left.
    stacking: How they share one; default: along axis 0.
    trust: Whether to check the number of output rows only; default False.
    """
    alone = [(request, found) for request in requests if (found := _answer(run, request))]
    if len(alone) < 2:
        return ""
    taken = [request for request, _ in alone]
    try:
        joined = stacking.join(taken)
        parts = stacking.split(run(joined.feeds), [1] * len(taken), joined)
        if trust:
            return ""
        if changed := changed_output(outputs, alone[0][1], run(taken[0])):
            return f"it gives another result each time: output {changed!r} of a row changes"
        for place in _differing(outputs, [answer for _, answer in alone], parts):
            sample = Sample(taken[place], parts[place], place, len(taken))
            if reason := influenced(run, sample, alone[place][1], outputs, stacking):
                return reason
    except CohortError as error:
        return f"{FAILED}: {error}"
    except RowsDoNotFollow as error:
        name = outputs[error.position].name
        return f"output {name!r} has shape {error.shape} for {len(taken)} rows of input"
    return ""


def influenced(
    run: RunFeeds,
    sample: Sample,
    alone: Outputs,
    outputs: Sequence[TensorSpec],
    stacking: Stacking = FIRST_AXIS,
) -> str:
    """Say whether others changed the answer to a request that `alone` is another one; "" if not.

    The request is run once more, in the same place of a run of as many copies of it. All that runs
    of this size round in another way is the same there, so what still differs is the others' doing.

    Raises what `run` raises, and RowsDoNotFollow.
    """
    inputs, answer, place, together = sample
    joined = stacking.join([inputs] * together)
    rows = stacking.rows_and_key(inputs)[0]
    copies = stacking.split(run(joined.feeds), [rows] * together, joined)[place]
    if changed := changed_output(outputs, copies, answer):
        return f"rows influence each other: output {changed!r} of a row changes"
    if changed := changed_output(outputs, alone, answer, ROUNDING):
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
