"""Example bodies for each API, complete and valid, or shortened.

An example with more than MAX_EXAMPLE values has only the first value of each large input, because
JSON of thousands of values is unreadable. `cohort.http.openapi.binary_calls` has working calls for
these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from cohort.errors import CohortError
from cohort.http.openapi.schemas import (
    MAX_DIMENSIONS,
    MAX_EXAMPLE,
    Schema,
    can_fill_in,
    columns_of,
    first_of,
    listed,
)
from cohort.operating import ServedModel
from cohort.tensors import Array, Arrays, TensorSpec, held_bytes

SMALL_INPUT = 64
"""Values of an input up to which it stays complete in a shortened example."""

MAX_TEXT = 16 * 1024
"""Bytes of text in an example."""


def predict_examples(served: ServedModel) -> dict[str, Any]:
    """Return bodies for the simple API by their forms, or {} if no inputs are known."""
    values = _values(served)
    if values is None:
        return {}
    shown: dict[str, Any] = {"by name": {"inputs": values}}
    if len(values) == 1:
        shown["as tutorials write it"] = {"input": next(iter(values.values()))}
    columns = [spec.name for spec in columns_of(served.inputs)]
    lists = [*values.values()]
    if 0 < len(columns) <= MAX_EXAMPLE and len({*map(len, lists)}) == 1:
        rows = lists[0] if len(columns) > len(lists) else zip(*lists, strict=True)
        cells = [dict(zip(columns, map(_cell, row), strict=True)) for row in rows]
        shown["as rows of a table"] = {"rows": cells}
    return shown


def _cell(value: Any) -> Any:
    return value[0] if isinstance(value, list) else value


def v1_examples(served: ServedModel) -> dict[str, Any]:
    """Return bodies for TensorFlow Serving's API in both forms."""
    values = _values(served)
    if not values:
        return {}
    shown: dict[str, Any] = {}
    if all(spec.shape for spec in served.inputs) and len(set(map(len, values.values()))) == 1:
        rows = zip(*values.values(), strict=True)
        shown["by row"] = {"instances": [dict(zip(values, row, strict=True)) for row in rows]}
    shown["by column"] = {"inputs": values}
    return shown


def v2_examples(served: ServedModel) -> dict[str, Any]:
    """Return a body for the Open Inference Protocol in JSON."""
    values, shapes = _values(served), example_shapes(served)
    if values is None or shapes is None:
        return {}
    inputs = [
        {
            "name": spec.name,
            "datatype": spec.datatype,
            "shape": list(shapes[spec.name]),
            "data": _in_list(values[spec.name]),
        }
        for spec in first_of(served.inputs)
    ]
    return {"in JSON": {"inputs": inputs}}


def are_shortened(served: ServedModel) -> bool:
    """Return True if the examples of a version are shortened."""
    if len(first_of(served.inputs)) < len(served.inputs):
        return True
    if served.example is None:
        return not can_fill_in(served.inputs)
    return _size(served.example.values()) > MAX_EXAMPLE or _text(served.example) > MAX_TEXT


def presented(served: ServedModel, bodies: Mapping[str, Any]) -> Schema:
    """Return examples in OpenAPI's form. Shortened ones are marked."""
    if not are_shortened(served):
        return {name: {"value": body} for name, body in bodies.items()}
    about = "shortened; the description has a call that works"
    return {name: {"summary": f"{name}, {about}", "value": body} for name, body in bodies.items()}


def example_shapes(served: ServedModel) -> dict[str, tuple[int, ...]] | None:
    """Return a shape that the version accepts for each input, or None if it is not known."""
    if served.example is not None:
        return {name: array.shape for name, array in served.example.items()}
    known = all(spec.transportable and spec.shape is not None for spec in served.inputs)
    if known and are_shortened(served):
        return {spec.name: _least_shape(spec) for spec in served.inputs}
    return None


def _least_shape(spec: TensorSpec) -> tuple[int, ...]:
    return tuple(size if isinstance(size, int) else 1 for size in spec.shape or ())


def _values(served: ServedModel) -> dict[str, Any] | None:
    """Return the inputs of an example as lists, complete or the first value of each."""
    shapes = example_shapes(served)
    if shapes is None or not any(spec.transportable for spec in served.outputs):
        return None
    shown = first_of(served.inputs)
    given = served.example or {}
    arrays = {spec.name: _one_value(spec, given.get(spec.name)) for spec in shown}
    if not are_shortened(served):
        arrays = given
    else:
        small = {name: one for name, one in given.items() if name in arrays and _is_small(one)}
        arrays |= small
    try:
        return listed(arrays)
    except CohortError:  # published with NaN, which JSON cannot carry
        return None


def _is_small(array: Array) -> bool:
    return _size([array]) <= SMALL_INPUT and _text({"": array}) <= MAX_TEXT


def _one_value(spec: TensorSpec, array: Array | None) -> Array:
    """Return the first value of an array in as many dimensions, or zero without an array."""
    rank = len(spec.shape or ()) if array is None else array.ndim
    if array is None or not array.size or not _is_small(first := array[(slice(0, 1),) * rank]):
        value = "" if spec.dtype.hasobject else 0
        return np.full((1,) * min(rank, MAX_DIMENSIONS), value, spec.dtype)
    return first


def _size(arrays: Sequence[Array] | Any) -> int:
    """Return the number of values in JSON, where an empty list counts as one."""
    return sum(prod(max(size, 1) for size in array.shape) for array in arrays)


def _text(arrays: Arrays) -> int:
    """Return the approximate bytes of text in arrays."""
    return sum(held_bytes(array) for array in arrays.values() if array.dtype.hasobject)


def _in_list(value: Any) -> list[Any]:
    """Return a list, because the protocol's data is always one."""
    return value if isinstance(value, list) else [value]
