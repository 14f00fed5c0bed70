"""Shape arithmetic on small tensors whose elements are all known as numbers or symbols."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from cohort.row_independence.arithmetic import (
    COMPARISONS,
    DOUBLE,
    FLOAT16,
    FLOAT_TYPES,
    LOGIC,
    Evaluate,
    apply_unary,
    arithmetic,
    choose_element,
    divide,
    each_element,
    extreme,
    modulo,
    negate,
    pairwise,
    power,
    scalar,
)
from cohort.row_independence.operation import Operation
from cohort.row_independence.sizes import MAX_NUMBER, NO_BOUND, Poly, Symbols, is_whole, least
from cohort.row_independence.tensors import (
    BOOL,
    FLOAT,
    INT32,
    INT64,
    MAX_FOLLOWED,
    STRING,
    Elements,
    Tensor,
    Unproven,
    constant,
    unknown,
)

EXACT = frozenset({FLOAT, INT32, INT64, DOUBLE, 12, 13})
"""Types that can represent every size; INT8 and FP16 cannot."""

WHOLE: Mapping[int, tuple[int, int]] = {
    **{dtype: (0, 1 << bits) for dtype, bits in ((2, 8), (4, 16), (12, 32))},
    **{dtype: (-1 << bits, 1 << bits) for dtype, bits in ((3, 7), (5, 15), (INT32, 31))},
    INT64: (1 - MAX_NUMBER, MAX_NUMBER),
    13: (0, MAX_NUMBER),
}
"""The inclusive minimum and exclusive maximum of each integer type.

64-bit types end at MAX_NUMBER, because larger numbers may overflow.
"""

MAX_SUMMED = 1 << 16
"""Maximum float for exact sums: MAX_FOLLOWED integers up to this add up without rounding."""

BEYOND = 1 << 28
"""Slice ends beyond this mean the end of the axis; no axis and no run is that long."""


def evaluate(operation: Operation) -> list[Tensor] | None:
    """Return an operator's outputs for small tensors; None unless all their elements are known."""
    function = EVALUATED.get(operation.name)
    given = operation.inputs
    if function is None or any(one is not None and one.rows for one in given):
        return None
    if not any(one is not None and one.elements is not None for one in given):
        return None
    counts = any(one is not None and one.counts for one in given)
    elements = []
    for one in given:
        found = one.elements if one is not None else None
        if one is not None and found is None:
            found = operation.elements(one) if counts else None
            if found is None:
                return None
        elements.append(found)
    with suppress(ArithmeticError, IndexError, TypeError, Unproven, ValueError):
        results = function(operation, *elements)
        if not isinstance(results, list):
            results = [results]
        dtype = _dtype(operation)
        arrays = [np.asarray(one, dtype=object) for one in results]
        if all(array.size <= MAX_FOLLOWED for array in arrays):
            return [constant(_round(array, dtype, operation.symbols), dtype) for array in arrays]
    return None


def _dtype(operation: Operation) -> int:
    if operation.name in COMPARISONS or operation.name in LOGIC or operation.name == "Not":
        return BOOL
    if operation.name in ("Cast", "CastLike"):
        return _target(operation)
    if operation.name == "Where":
        return operation.required(1).dtype
    return operation.present()[0].dtype


def _target(operation: Operation) -> int:
    if operation.name == "CastLike":
        return operation.required(1).dtype
    return int(operation.attribute("to", 0))


def _round(array: Elements, dtype: int, symbols: Symbols) -> Elements:
    """Round the elements to the model's type.

    An element that the type cannot represent becomes unknown, because its value depends on the
    runtime.
    """

    def one(value: Any) -> Any:
        if isinstance(value, bool | Poly):
            return value
        if dtype in (FLOAT, DOUBLE):
            rounded = float(np.float32(value)) if dtype == FLOAT else float(value)
            return int(rounded) if isinstance(value, int) else rounded
        return value if _holds(dtype, value) else symbols.new(NO_BOUND, whole=dtype in WHOLE)

    with np.errstate(over="ignore"):
        return each_element(one, array)


def _holds(dtype: int, value: int | float) -> bool:
    """Return True if a type represents this number exactly."""
    if dtype == FLOAT16:
        return float(np.float16(value)) == value
    bounds = WHOLE.get(dtype)
    return isinstance(value, int) and bounds is not None and bounds[0] <= value < bounds[1]


def _cast(operation: Operation, array: Elements, *_: Any) -> Elements:
    to = _target(operation)
    if to == STRING:
        raise TypeError("a text")

    def one(value: Any) -> Any:
        if isinstance(value, Poly):
            if to == BOOL or to not in EXACT:
                return value.symbols.term(
                    "cast", value, to, least=NO_BOUND, whole=to not in FLOAT_TYPES
                )
            if to in FLOAT_TYPES or is_whole(value):
                return value
            return value.symbols.term("floor", value, least=0 if least(value) >= 0 else NO_BOUND)
        if to == BOOL:
            return bool(value)
        if to not in FLOAT_TYPES:
            return int(value)
        if isinstance(value, int) and int(float(value)) != value:
            raise ArithmeticError("a number that is rounded twice")
        return float(value)

    return each_element(one, array)


def _gather(operation: Operation, array: Elements, index: Elements) -> Elements:
    axis = operation.axis(0, array.ndim)
    return np.take(array, np.asarray(index, dtype=np.int64), axis)


def _slice(operation: Operation, array: Elements, *_: Any) -> Elements:
    where: list[Any] = [slice(None)] * array.ndim
    for axis, start, end, step in slices(operation, array.ndim):
        where[axis] = slice(*plain_slice(start, end, step))
    found: Elements = array[tuple(where)]
    return found


def slices(operation: Operation, rank: int) -> list[tuple[int, Any, Any, Any]]:
    """Return the axis, start, end and step of each part of a Slice. Raises Unproven."""
    what = "the cut position"
    if "starts" in operation.attributes:
        starts, ends = operation.attribute("starts"), operation.attribute("ends", [])
    else:
        starts, ends = operation.known(1, what), operation.known(2, what)
    if starts is None or ends is None:
        unknown(f"{what} is not known")
    axes = operation.axes(3, rank)
    steps = operation.known_numbers(4, what) or [1] * len(starts)
    return list(zip(axes or range(len(starts)), starts, ends, steps, strict=False))


def plain_slice(start: Any, end: Any, step: Any) -> tuple[int | None, int | None, int]:
    """Convert a slice to Python's: bounds beyond every axis become the end of the axis."""
    if not all(isinstance(one, int) for one in (start, end, step)) or step == 0:
        raise TypeError("the slice is not known")
    beyond = None if (end > 0) == (step > 0) else BEYOND * (1 if end > 0 else -1)
    return max(min(start, BEYOND), -BEYOND), end if abs(end) < BEYOND else beyond, step


def _concatenate(operation: Operation, *arrays: Elements) -> Elements:
    return np.concatenate(arrays, operation.axis(1, arrays[0].ndim))


def _reshape(operation: Operation, array: Elements, *_: Any) -> Elements:
    shape = list(operation.known_numbers(1, "the new shape") or [])
    for at, size in enumerate(shape):
        if size == 0 and not operation.attribute("allowzero", 0):
            shape[at] = array.shape[at]
    return array.reshape(shape)


def _squeeze(operation: Operation, array: Elements, *_: Any) -> Elements:
    axes = operation.axes(1, array.ndim)
    return array.squeeze(None if axes is None else tuple(axes))


def _unsqueeze(operation: Operation, array: Elements, *_: Any) -> Elements:
    count = len(operation.attribute("axes", operation.known(1, "an axis") or []))
    return np.expand_dims(array, tuple(operation.axes(1, array.ndim + count) or ()))


def _reduce(function: Callable[[Operation, Any, Any], Any]) -> Evaluate:
    def reduce(operation: Operation, array: Elements, *_: Any) -> Elements:
        axes = operation.axes(1, array.ndim)
        if array.ndim != 1 or not array.size or (axes is not None and axes != [0]):
            raise TypeError("not all of a list")
        if any(isinstance(one, float) and not _is_summed(one) for one in array):
            raise ArithmeticError("a result that depends on the order")
        found = array[0]
        for one in array[1:]:
            found = function(operation, found, one)
        return scalar(found).reshape([1] if operation.attribute("keepdims", 1) else [])

    return reduce


def _is_summed(value: float) -> bool:
    return value.is_integer() and abs(value) <= MAX_SUMMED


def _split(operation: Operation, array: Elements, *_: Any) -> list[Elements]:
    axis = operation.axis(0, array.ndim)
    sizes = operation.attribute("split", operation.known_numbers(1, "the cut position"))
    if sizes is None:
        chunk = -(-array.shape[axis] // operation.outputs)
        ends = [chunk * at for at in range(1, operation.outputs)]
    else:
        ends = list(np.cumsum(sizes))[:-1]
    return list(np.split(array, ends, axis))


def _range(_: Operation, start: Elements, end: Elements, step: Elements) -> Elements:
    numbers = [one.item() for one in (start, end, step)]
    if not all(isinstance(one, int) for one in numbers) or len(range(*numbers)) > MAX_FOLLOWED:
        raise TypeError("a range that is not known")
    return np.array(list(range(*numbers)), dtype=object)


def _transpose(operation: Operation, array: Elements) -> Elements:
    return array.transpose(operation.attribute("perm"))


def _expand(operation: Operation, array: Elements, *_: Any) -> Elements:
    shape = operation.known_numbers(1, "the new shape") or []
    return np.broadcast_to(array, np.broadcast_shapes(array.shape, tuple(shape)))


def _tile(operation: Operation, array: Elements, *_: Any) -> Elements:
    times = operation.known_numbers(1, "the number of repeats") or []
    if math.prod(times) * array.size > MAX_FOLLOWED:
        raise TypeError("too many")
    return np.tile(array, times)


EVALUATED: Mapping[str, Evaluate] = {
    "Add": arithmetic(operator.add),
    "Sub": arithmetic(operator.sub),
    "Mul": arithmetic(operator.mul),
    "Div": pairwise(divide),
    "Mod": pairwise(modulo),
    "Pow": pairwise(power),
    "Min": pairwise(extreme(1)),
    "Max": pairwise(extreme(-1)),
    **{name: pairwise(function) for name, function in (*COMPARISONS.items(), *LOGIC.items())},
    "Not": lambda _, array: each_element(negate, array),
    "Neg": lambda _, array: each_element(operator.neg, array),
    "Abs": apply_unary(abs, "abs"),
    "Floor": apply_unary(math.floor, "floor"),
    "Ceil": apply_unary(math.ceil, "ceil"),
    "Round": apply_unary(round, "round"),
    "Cast": _cast,
    "CastLike": _cast,
    "Where": lambda _, *arrays: each_element(choose_element, *arrays),
    "Identity": lambda _, array: array,
    "Gather": _gather,
    "Slice": _slice,
    "Split": _split,
    "Concat": _concatenate,
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Transpose": _transpose,
    "Expand": _expand,
    "Tile": _tile,
    "Range": _range,
    "ReduceProd": _reduce(lambda _, one, two: one * two),
    "ReduceSum": _reduce(lambda _, one, two: one + two),
    "ReduceMax": _reduce(extreme(-1)),
    "ReduceMin": _reduce(extreme(1)),
}
