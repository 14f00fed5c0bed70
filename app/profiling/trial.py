"""Synthetic inputs: made for a model from its description, so that it can be run before a request.

A `Trial` is found once per load, by running the model, and is then used by all that tries it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from time import perf_counter

import numpy as np

from app.batching import Outputs
from app.errors import CohortError, InvalidInput, quoted
from app.tensors import BY_NAME, Array, Arrays, TensorSpec

RunFeeds = Callable[[Arrays], Outputs]
"""One run of a model: its inputs to its outputs. Raises a CohortError."""

LENGTHS = (16, 1, 8, 32, 64, 128, 224, 256)
"""Tried in this order for dimensions (other than rows) that the model leaves open."""

MAX_ROW_ELEMENTS = 1 << 25
"""Eight open dimensions of 16 would fill any memory."""

SCALES = (1.0, 0.03, 30.0, 0.3, 1.0, 10.0, 0.1, 3.0)
"""How large the values of row i are, over and over: neighbours differ by an order of magnitude."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Inputs that a model was seen to take: open dimensions other than rows are `length` long.

    `seconds` is how long the run with a row of them took, the first one of all. `problem` says why
    there are none; then `feeds` must not be called.
    """

    inputs: Sequence[TensorSpec] = ()
    length: int = 0
    problem: str = ""
    seconds: float = 0.0

    def feeds(self, rows: int) -> Arrays:
        """Inputs of `rows` rows, the same every time."""
        return synthetic_inputs(self.inputs, rows, self.length)


def find_trial(run: RunFeeds, inputs: Sequence[TensorSpec]) -> Trial:
    """Find inputs that the model accepts, in one run for each length tried.

    Where it accepts none of `LENGTHS`, the `problem` is its reason to refuse the first.
    """
    problem = ""
    for length in LENGTHS if any(map(has_open_dimensions, inputs)) else LENGTHS[:1]:
        try:
            for spec in inputs:
                _check_size(spec, length)
            feeds = synthetic_inputs(inputs, 1, length)
            started = perf_counter()
            run(feeds)
        except CohortError as error:
            problem = problem or str(error)
        else:
            return Trial(inputs, length, seconds=perf_counter() - started)
    return Trial(problem=problem)


def has_open_dimensions(spec: TensorSpec) -> bool:
    """Whether the model leaves open a dimension other than the rows."""
    return any(not isinstance(size, int) for size in (spec.shape or ())[1:])


def _check_size(spec: TensorSpec, length: int) -> None:
    sizes = [size if isinstance(size, int) else length for size in spec.shape or ()]
    elements = prod([1, *sizes[1:]] if spec.rows_vary else sizes)
    if elements > MAX_ROW_ELEMENTS:
        raise InvalidInput(f"one row of input {quoted(spec.name)} would take {elements} elements")


def synthetic_inputs(inputs: Sequence[TensorSpec], rows: int, length: int) -> Arrays:
    """Make inputs of `rows` rows, the same every time, each row's values of another scale.

    Whole numbers are 0 or 1, since most are indices or masks; a row's first is always 1.
    """
    random = np.random.default_rng(0)
    return {spec.name: _synthetic_input(spec, rows, length, random) for spec in inputs}


def _synthetic_input(
    spec: TensorSpec, rows: int, length: int, random: np.random.Generator
) -> Array:
    shape = [size if isinstance(size, int) else length for size in spec.shape or ()]
    if spec.rows_vary:
        shape[0] = rows
    dtype = spec.dtype  # raises for what is not a tensor
    kind = BY_NAME[spec.datatype].kind
    array: Array
    if kind == "text":
        array = np.asarray(random.integers(0, 100, shape)).astype(str).astype(object)
    elif kind in {"int", "bool"}:
        array = np.asarray(random.integers(0, 2, shape)).astype(dtype)
        if array.ndim > 1 and array.size:
            array.reshape(len(array), -1)[:, 0] = 1
    else:
        scales = np.resize(SCALES, shape[0]).reshape(-1, *[1] * (len(shape) - 1)) if shape else 1.0
        array = np.asarray(random.standard_normal(shape) * scales).astype(dtype)
    return array
