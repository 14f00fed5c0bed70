"""The verdict on a model whose rows are independent only in requests of some sizes.

A speech model may choose its branch by length or sample rate. No proof then covers all requests.
With the sizes and shared values of one request instead of symbols, a single branch remains, which
may be provable.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

from numpy.typing import NDArray

from cohort.model_file.constants import ConstantTensor
from cohort.model_file.graphs import GraphInput, ModelGraphs
from cohort.row_independence.tensors import MAX_FOLLOWED, STRING
from cohort.row_independence.verdict import (
    Assignment,
    OutputRows,
    RequestKind,
    RowKind,
    RowVerdict,
    count_with_rows,
    guess_rows,
    prove_rows,
)

RequestArrays = Mapping[str, NDArray[Any]]
"""The inputs of a request, by name."""

MAX_REQUESTS = 8
"""Maximum number of requests that are examined for one model."""

NOT_FOLLOWED = "it takes too long, or an input without rows is large or text"

MAX_SECONDS_BY_REQUEST = 1.0
"""CPU time limit for all requests of a model together."""


def prove_for_requests(
    model: ModelGraphs, known: RowVerdict, requests: Sequence[RequestArrays]
) -> RowVerdict:
    """Return a verdict for requests like these if rows are independent in them; otherwise `known`.

    Examines the first MAX_REQUESTS requests, all with the same row axes. Of the axes for which at
    least one request is proven, those with rows in the most inputs are used. Raises nothing.
    """
    if not known.by_request:
        return known
    inputs = [one for one in model.main.inputs if one.name not in model.main.constants]
    until = time.thread_time() + MAX_SECONDS_BY_REQUEST
    for rows in sorted(guess_rows(inputs), key=count_with_rows, reverse=True):
        proven, others = [], []
        for number, request in enumerate(requests[:MAX_REQUESTS], 1):
            left = until - time.thread_time()
            kind = _kind_of(inputs, request, rows)
            if kind is None or left <= 0:
                others.append(f"example {number}: {NOT_FOLLOWED}")
                continue
            verdict = _prove(model, inputs, rows, kind, left)
            if verdict.independent:
                proven.append(replace(verdict, requests=(kind,)))
            else:
                others.append(f"example {number}: {verdict}")
        if proven:
            if len(requests) > MAX_REQUESTS:
                others.append(f"examples after {MAX_REQUESTS} are not checked")
            found = reduce(_both, proven)
            return replace(found, dependence=known.dependence, other_requests=tuple(others))
    return known


def _kind_of(
    inputs: Sequence[GraphInput], request: RequestArrays, rows: Assignment
) -> RequestKind | None:
    """Return a request's kind with these row axes; None if it does not fit or is not followed."""
    shapes, values = {}, {}
    for one in inputs:
        array, axis = request.get(one.name), rows[one.name]
        if array is None:
            return None
        if axis is not None and axis < array.ndim:
            shapes[one.name] = (*array.shape[:axis], 1, *array.shape[axis + 1 :])
        elif axis is None and one.dtype != STRING and array.size <= MAX_FOLLOWED:
            shapes[one.name], values[one.name] = array.shape, tuple(array.ravel().tolist())
        else:
            return None
    return RequestKind(shapes, values)


def _prove(
    model: ModelGraphs,
    inputs: Sequence[GraphInput],
    rows: Assignment,
    kind: RequestKind,
    seconds: float,
) -> RowVerdict:
    """Return the verdict on requests of this kind, with fixed sizes and constant shared values."""
    constants = {
        one.name: ConstantTensor(one.dtype, kind.shapes[one.name], kind.values[one.name])
        for one in inputs
        if one.name in kind.values
    }
    sized = [one._replace(shape=tuple(_sizes(one, rows, kind))) for one in inputs]
    main = model.main._replace(inputs=sized, constants={**model.main.constants, **constants})
    own = {name: axis for name, axis in rows.items() if axis is not None}
    verdict = prove_rows(model._replace(main=main), guesses=[own], max_seconds=seconds)
    shared = verdict.kind is RowKind.PROVEN and bool(constants)
    return replace(verdict, kind=RowKind.SHARED if shared else verdict.kind, inputs=rows)


def _sizes(one: GraphInput, rows: Assignment, kind: RequestKind) -> Iterator[int | str | None]:
    """Yield the sizes of an input: the file's size for the row axis, the request's for others."""
    declared = one.shape or ()
    for axis, size in enumerate(kind.shapes[one.name]):
        yield declared[axis] if axis == rows[one.name] else size


def _both(one: RowVerdict, other: RowVerdict) -> RowVerdict:
    """Return the verdict on both kinds of request; `one` if their output rows are incompatible."""
    outputs: dict[str, OutputRows | None] = {}
    for name, place in one.outputs.items():
        another = other.outputs[name]
        if place == another:
            outputs[name] = place
        elif place is None or another is None or place.axis != another.axis:
            return one
        else:
            outputs[name] = OutputRows(place.axis, None)
    more = [kind for kind in other.requests if kind not in one.requests]
    kernels = {**other.kernels, **one.kernels}
    return replace(one, outputs=outputs, kernels=kernels, requests=(*one.requests, *more))
