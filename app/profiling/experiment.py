"""Run requests together and alone, and compare: the second look at whether rows are independent.

The proof from the graph comes first. This finds what no graph shows: a kernel or a custom operator
that does something else than it says.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.batching import FIRST_AXIS, Outputs, RowsDoNotFollow, Stacking
from app.comparing import SAME_ROW, Pair, compare
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
        together = stacking.split(run(joined.feeds), [1] * len(taken), joined)
        if trust:
            return ""
        if changed := first_changed(outputs, [run(taken[0])], [alone[0][1]]):
            return f"it gives another result each time: output {changed!r} of a row changes"
        if changed := first_changed(outputs, [answer for _, answer in alone], together):
            return f"rows influence each other: output {changed!r} of a row changes"
    except CohortError as error:
        return f"{FAILED}: {error}"
    except RowsDoNotFollow as error:
        name = outputs[error.position].name
        return f"output {name!r} has shape {error.shape} for {len(taken)} rows of input"
    return ""


def _answer(run: RunFeeds, request: Arrays) -> Outputs | None:
    """The outputs of a request alone; None where the model refuses it."""
    try:
        return run(request)
    except CohortError:
        return None


def first_changed(
    outputs: Sequence[TensorSpec], expected: Sequence[Outputs], got: Sequence[Outputs]
) -> str:
    """The name of the first output that differs by more than rounding, "" where none does."""
    pairs = [
        Pair(by_name(outputs, one), by_name(outputs, other))
        for one, other in zip(expected, got, strict=True)
    ]
    found = [one for differences in compare(pairs, SAME_ROW) for one in differences]
    return next((one.output for one in found if one.disagrees), "")
