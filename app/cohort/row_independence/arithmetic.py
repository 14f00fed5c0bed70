"""Elementwise arithmetic with numbers and symbols."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cohort.row_independence.operation import Operation
from cohort.row_independence.sizes import (
    NO_BOUND,
    Poly,
    Symbols,
    compare_sizes,
    is_whole,
    least,
    of_rows,
    quotient,
)
from cohort.row_independence.tensors import FLOAT, Elements

FLOAT16, DOUBLE, BFLOAT16 = 10, 11, 16
FLOAT_TYPES = frozenset({FLOAT, FLOAT16, DOUBLE, BFLOAT16})

MAX_POWER = 64

Evaluate = Callable[..., Any]


def each_element(function: Callable[..., Any], *arrays: Elements) -> Elements:
    made = np.frompyfunc(function, len(arrays), 1)(*arrays)
    return made if isinstance(made, np.ndarray) else scalar(made)


def scalar(value: Any) -> Elements:
    array = np.empty((), dtype=object)
    array[()] = value
    return array


def _tame(value: Any) -> Any:
    """Convert a float with an integer value to int, so that it can be compared with sizes."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _symbols(*values: Any) -> Symbols | None:
    return next((one.symbols for one in values if isinstance(one, Poly)), None)


def pairwise(function: Callable[[Operation, Any, Any], Any]) -> Evaluate:
    """Return a function that combines all inputs in turn, pair by pair of elements."""

    def apply(operation: Operation, first: Elements, *others: Elements) -> Elements:
        found = first
        for other in others:
            found = each_element(lambda one, two: function(operation, one, two), found, other)
        return found

    return apply


def arithmetic(function: Callable[[Any, Any], Any]) -> Evaluate:
    return pairwise(
        lambda _, one, two: (
            function(_tame(one), _tame(two)) if _symbols(one, two) else function(one, two)
        )
    )


def divide(operation: Operation, one: Any, two: Any) -> Any:
    symbols = _symbols(one, two)
    floats = operation.first().dtype in FLOAT_TYPES
    if symbols is None:
        if floats:
            return one / two
        return -(-one // two) if (one < 0) != (two < 0) else one // two
    one, two = _tame(one), _tame(two)
    positive = least(one) >= 0 and least(two) > 0
    if is_whole(one) and is_whole(two):
        if (exact := quotient(one, two)) is not None:
            return exact
        if not floats and positive and isinstance(two, int) and isinstance(one, Poly):
            rest = one.terms.get((), 0) % two  # (2N + 1) // 2 is N
            if (exact := quotient(one - rest, two)) is not None:
                return exact
    bound = 0 if positive else NO_BOUND
    return symbols.term("div", one, two, floats, least=bound, whole=not floats)


def modulo(operation: Operation, one: Any, two: Any) -> Any:
    if symbols := _symbols(one, two):
        exact = is_whole(one) and is_whole(two) and quotient(_tame(one), _tame(two)) is not None
        return 0 if exact else symbols.term("mod", one, two, whole=False)
    if not operation.attribute("fmod", 0):
        return one % two
    if isinstance(one, int) and isinstance(two, int):
        return abs(one) % abs(two) * (-1 if one < 0 else 1)
    return math.fmod(one, two)


def power(_: Operation, one: Any, two: Any) -> Any:
    if symbols := _symbols(one, two):
        if isinstance(one, Poly) and _tame(two) in (1, 2, 3):
            return math.prod([one] * int(two))
        return symbols.term("pow", one, two, whole=False)
    if not 0 <= two <= MAX_POWER or abs(one) > 1 << 32 or not is_whole(one) or not is_whole(two):
        raise ArithmeticError("a power that may be rounded in another way")
    return one**two


def extreme(sign: int) -> Callable[[Operation, Any, Any], Any]:
    """Return a function for the minimum of two values, or the maximum if `sign` is -1."""

    def choose(operation: Operation, one: Any, two: Any) -> Any:
        symbols = _symbols(one, two)
        if symbols is None:
            if math.isnan(one) or math.isnan(two):
                raise ArithmeticError("the result in the model is not a number")
            return min(one, two) if sign > 0 else max(one, two)
        one, two = _tame(one), _tame(two)
        if least(one - two) >= 0:
            return two if sign > 0 else one
        if least(two - one) >= 0:
            return one if sign > 0 else two
        bound = (min if sign > 0 else max)(least(one), least(two))
        whole = is_whole(one) and is_whole(two)
        both = sorted((one, two), key=repr)
        found = symbols.term(f"least{sign}", *both, least=bound, whole=whole)
        for limit, size in (both, both[::-1]):
            if sign > 0 and whole and isinstance(limit, int) and limit > 1 and not of_rows(size):
                operation.walk.cuts[found] = size
        return found

    return choose


def _comparison(holds: Callable[[int, int], bool], strict: bool) -> Callable[..., Any]:
    """Return a comparison of two elements.

    strict: True if the comparison is false for equal elements.
    """

    def decide(operation: Operation, one: Any, two: Any) -> Any:
        symbols = _symbols(one, two)
        if symbols is None:
            return holds(one, two)
        one, two = _tame(one), _tame(two)
        order = compare_sizes(one, two)
        if order is not None:
            return holds(order, 0)
        if operation.name in ("Less", "GreaterOrEqual") and least(one - two) >= 0:
            return not strict
        if operation.name in ("Greater", "LessOrEqual") and least(two - one) >= 0:
            return not strict
        return symbols.term(operation.name, one, two, least=0)

    return decide


def _logic(decide: Callable[[bool, bool], bool], settled: bool | None) -> Callable[..., Any]:
    """Return a logical operation on two elements.

    settled: The operand that decides the result alone, if there is one.
    """

    def combine(operation: Operation, one: Any, two: Any) -> Any:
        symbols = _symbols(one, two)
        if symbols is None:
            return decide(bool(one), bool(two))
        if settled is not None and (one is settled or two is settled):
            return settled
        return symbols.term(operation.name, one, two, least=0)

    return combine


COMPARISONS: Mapping[str, Callable[..., Any]] = {
    "Equal": _comparison(operator.eq, strict=False),
    "Less": _comparison(operator.lt, strict=True),
    "LessOrEqual": _comparison(operator.le, strict=False),
    "Greater": _comparison(operator.gt, strict=True),
    "GreaterOrEqual": _comparison(operator.ge, strict=False),
}
LOGIC: Mapping[str, Callable[..., Any]] = {
    "And": _logic(operator.and_, settled=False),
    "Or": _logic(operator.or_, settled=True),
    "Xor": _logic(operator.xor, settled=None),
}


def apply_unary(plain: Callable[[Any], Any], name: str) -> Evaluate:
    """Return a function that applies `plain` to numbers.

    Integer symbols are returned unchanged; for "abs", only if they cannot be negative.
    """

    def one(value: Any) -> Any:
        if not isinstance(value, Poly):
            return plain(value)
        if is_whole(value) and (name != "abs" or least(value) >= 0):
            return value
        return value.symbols.term(name, value, least=0 if least(value) >= 0 else NO_BOUND)

    return lambda _, array: each_element(one, array)


def negate(value: Any) -> Any:
    return not value if isinstance(value, bool | int) else value.symbols.term("not", value, least=0)


def choose_element(condition: Any, one: Any, two: Any) -> Any:
    if not isinstance(condition, Poly):
        return one if condition else two
    if type(one) is type(two) and one == two:
        return one
    whole = is_whole(one) and is_whole(two)
    return condition.symbols.term("where", condition, one, two, whole=whole)
