"""Conditions of steps: `max(small.probabilities) < 0.8 and not small.score > 3`.

Conditions use a small subset of Python. Python's parser reads them, no Python code is run, and
any other syntax is rejected. A function takes one tensor and returns one number per row. If the
condition is decided for the whole request, it returns one number for all rows.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from cohort.errors import InferenceFailed, did_you_mean, quoted
from cohort.tensors import Array

MAX_CHARACTERS = 1000

EXAMPLE = "such as max(small.probabilities) < 0.8"

Values = Mapping[str, Array]
"""Tensors by name."""

Evaluate = Callable[[Values, bool], Any]
"""Takes the tensors and True for one value per row, or False for one value per request."""


class ConditionWrong(Exception):
    """A condition that cannot be parsed; the message states the problem and the valid syntax."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A parsed condition.

    text: The source text.
    tensors: The names of the tensors that the condition reads.
    """

    text: str
    tensors: tuple[str, ...]
    _evaluate: Evaluate = field(compare=False, repr=False)

    def holds(self, values: Values, *, by_rows: bool) -> Array:
        """Return the condition's truth for each row, or one value for the whole request.

        For NaN, every comparison except != is false. Raises InferenceFailed if a tensor has no
        values, or has several where the condition needs one number.
        """
        with np.errstate(over="ignore"):  # a number outside the datatype's range becomes infinite
            found: Array = np.asarray(self._evaluate(values, by_rows), np.bool_)
        return found


def parse_condition(text: str) -> Condition:
    """Parse a condition. Raises ConditionWrong."""
    if len(text) > MAX_CHARACTERS:
        raise ConditionWrong(f"must have at most {MAX_CHARACTERS} characters, got {len(text)}")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        why = error.msg if isinstance(error, SyntaxError) else "it is nested too deeply"
        raise ConditionWrong(f"{quoted(text)} cannot be read: {why}; write one {EXAMPLE}") from None
    reader = _Reader()
    try:
        evaluate = reader.truth(tree)
    except RecursionError:
        raise ConditionWrong(f"{quoted(text)} is nested too deeply") from None
    if not reader.tensors:
        raise ConditionWrong(f"{quoted(text)} names no tensor; write one {EXAMPLE}")
    return Condition(text.strip(), tuple(dict.fromkeys(reader.tensors)), evaluate)


_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


class _Reader:
    """Compiler from a syntax tree to functions; it collects the names of the tensors."""

    def __init__(self) -> None:
        self.tensors: list[str] = []

    def truth(self, node: ast.expr) -> Evaluate:
        match node:
            case ast.BoolOp(op=op, values=parts):
                return _all_of(map(self.truth, parts), isinstance(op, ast.And))
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                denied = self.truth(inner)
                return lambda values, rows: np.logical_not(denied(values, rows))
            case ast.Compare(left=left, ops=ops, comparators=rights):
                return self._comparison(left, ops, rights)
        raise ConditionWrong(f"{_written(node)} is neither true nor false; compare it, {EXAMPLE}")

    def _comparison(self, left: ast.expr, ops: list[ast.cmpop], rights: list[ast.expr]) -> Evaluate:
        sides = [self.number(one) for one in (left, *rights)]
        compare = []
        for place, op in enumerate(ops):
            if op.__class__ not in _COMPARISONS:
                raise ConditionWrong("compare by <, <=, >, >=, == or !=")
            compare.append(_compared(_COMPARISONS[op.__class__], sides[place], sides[place + 1]))
        return compare[0] if len(compare) == 1 else _all_of(compare, True)

    def number(self, node: ast.expr) -> Evaluate:
        match node:
            case ast.Constant(value=bool()):
                pass
            case ast.Constant(value=int() | float() as value):
                return lambda values, rows: value
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                negated = self.number(inner)
                return lambda values, rows: -negated(values, rows)
            case ast.Call(func=ast.Name(id=name), args=[tensor], keywords=[]):
                if name not in FUNCTIONS:
                    known = did_you_mean(name, FUNCTIONS)
                    raise ConditionWrong(f"there is no function {quoted(name)}{known}")
                return self._of(name, self.tensor(tensor))
            case ast.Call(func=ast.Name(id=name)) if name in FUNCTIONS:
                raise ConditionWrong(f"{name} needs exactly one tensor, {EXAMPLE}")
            case ast.Name() | ast.Attribute() | ast.Constant(value=str()):
                return self._of("", self.tensor(node))
        raise ConditionWrong(f"{_written(node)} is not understood; {UNDERSTOOD}")

    def tensor(self, node: ast.expr) -> str:
        match node:
            case ast.Name(id=name) | ast.Constant(value=str(name)):
                self.tensors.append(name)
                return name
            case ast.Attribute(value=ast.Name(id=step), attr=output):
                self.tensors.append(f"{step}.{output}")
                return f"{step}.{output}"
        raise ConditionWrong(
            f"{_written(node)} is not a tensor; write step.output or the name of an input, in "
            "quotes if it has other characters: 'step.output:0'"
        )

    def _of(self, function: str, tensor: str) -> Evaluate:
        reduce = FUNCTIONS[function] if function else _single

        def evaluate(values: Values, rows: bool) -> Any:
            array = values[tensor]
            if rows and not array.ndim:
                raise InferenceFailed(f"{tensor} has no rows")
            if not (prod(array.shape[1:]) if rows else array.size):
                raise InferenceFailed(f"{tensor} has no values, but shape {list(array.shape)}")
            return reduce(array if rows else array.reshape(1, -1))

        return evaluate if function else lambda values, rows: _named(evaluate, values, rows, tensor)


def _named(evaluate: Evaluate, values: Values, rows: bool, tensor: str) -> Any:
    try:
        return evaluate(values, rows)
    except _SeveralNumbers as error:
        raise InferenceFailed(
            f"{tensor} has {error} numbers where its condition needs one; write max({tensor}), "
            "or another function"
        ) from None


class _SeveralNumbers(Exception):
    """A tensor with several numbers in a place that needs one."""


def _compared(compare: Callable[[Any, Any], Any], left: Evaluate, right: Evaluate) -> Evaluate:
    return lambda values, rows: compare(left(values, rows), right(values, rows))


def _all_of(parts: Any, every: bool) -> Evaluate:
    join = np.logical_and if every else np.logical_or
    first, *others = parts

    def evaluate(values: Values, rows: bool) -> Any:
        found = first(values, rows)
        for part in others:
            found = join(found, part(values, rows))
        return found

    return evaluate


def _written(node: ast.expr) -> str:
    return quoted(ast.unparse(node), 60)


def _exact(array: Array) -> Any:
    """Convert floats to 64 bits, for sums and sorting; return other numbers unchanged."""
    if array.dtype.kind in "biu":
        return array
    return array.astype(np.float64)


def _plain(array: Array) -> Any:
    """Keep the tensor's datatype if it is built into numpy; otherwise convert floats to 64 bits.

    numpy rounds the other side of a comparison to that datatype. So an FP32 score that responses
    show as 0.7 is at least 0.7, as for the `threshold` of an output.
    """
    return array if array.dtype.isbuiltin == 1 else _exact(array)


def _by_row(
    reduce: Callable[..., Any], numbers: Callable[[Array], Any] = _exact
) -> Callable[[Array], Any]:
    def of(array: Array) -> Any:
        axes = tuple(range(1, array.ndim))
        return _one(reduce(numbers(array), axis=axes))

    return of


def _argmax(array: Array) -> Any:
    flat = _exact(array).reshape(len(array), prod(array.shape[1:]))
    return _one(flat.argmax(axis=1))


def _single(array: Array) -> Any:
    if (count := prod(array.shape[1:])) != 1:
        raise _SeveralNumbers(count)
    return _one(_plain(array).reshape(len(array)))


def _one(numbers: Any) -> Any:
    """Convert unsigned numbers to FP64, so that they can be negated and compared."""
    return numbers.astype(np.float64 if numbers.dtype.kind == "u" else numbers.dtype) + 0


FUNCTIONS: Mapping[str, Callable[[Array], Any]] = {
    "max": _by_row(np.max, _plain),
    "min": _by_row(np.min, _plain),
    "mean": _by_row(np.mean),
    "sum": _by_row(np.sum),
    "argmax": _argmax,
}

UNDERSTOOD = f"there are {', '.join(FUNCTIONS)} of a tensor, numbers, comparisons, and, or, not"
