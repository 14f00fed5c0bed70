"""Inputs to compare two models on: given ones in batches, or generated ones (deterministic)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

import numpy as np

from cohort.comparing import Numbers
from cohort.profiling import synthetic_inputs
from cohort.tensors import BY_NAME, Array, Arrays, TensorSpec
from cohort_prepare.evaluating.cases import Cases
from cohort_prepare.evaluating.graph_hints import GraphHints, InputHint
from cohort_prepare.frameworks.outputs import around

BATCH = 64
"""Rows of given inputs in one run."""

MAX_ELEMENTS = 1 << 24
"""Maximum for one generated case, all inputs together."""

MAX_LONG_ELEMENTS = 1 << 16
"""Maximum for a case of LONG: for tokens, not pixels."""

LENGTHS_TRIED = (16, 7, 32, 64, 1, 128, 224, 256)
"""Lengths of variable dimensions, in the order to try."""

LONG = 600
"""A length above 512, where many models cut their input."""

Purpose = Literal["values", "rows", "length", "missing", "fixed"]

TOLD_ONLY: frozenset[Purpose] = frozenset({"missing", "fixed"})
"""A difference in these cases is a note, not a failure."""


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """Inputs of one run.

    title: Description, such as "2 rows, large".
    inputs: Arrays by input name.
    rows: Number of rows.
    purpose: Difference from the first case: values, number of rows, length of variable dimensions,
        missing values (NaN), or more rows than the model declares.
    length: Length of variable dimensions; 0 if there are none, or inputs were given.
    start: Position of the first row in given inputs; None if generated or repeated.
    """

    title: str
    inputs: Arrays
    rows: int
    purpose: Purpose = "values"
    length: int = 0
    start: int | None = None


Spread = Callable[[Numbers], Numbers]

SPREADS: Mapping[str, Spread] = {
    "of size 1": lambda array: array,
    "positive": np.abs,
    "negative": lambda array: -np.abs(array),
    "large": lambda array: array * 100,
    "small": lambda array: array * 0.001,
    "zeros": np.zeros_like,
    "whole numbers": lambda array: np.round(array * 4),
}

INTEGERS_BELOW: Mapping[str, int] = {"large": 1 << 17, "positive": 100}
"""Unknown integers are below this in cases of that name; else 0 or 1."""


def given_cases(cases: Cases, *, fixed_rows: int | None = None) -> Iterator[Case]:
    """Yield all rows in batches, then the first one and the first two, which must give the same.

    fixed_rows: Number of rows of each run of the model; a rest is dropped.
    """
    if not cases.by_row:
        yield Case("as given", cases.inputs, 1, start=0)
        return
    for start, part in cases.batches(fixed_rows or BATCH):
        if not fixed_rows or part.rows == fixed_rows:
            last = start + part.rows - 1
            title = f"rows {start} to {last}" if last > start else f"row {start}"
            yield Case(title, part.inputs, part.rows, start=start)
    for count, title in ((1, "the first row alone"), (2, "the first 2 rows")):
        if cases.rows > count and not fixed_rows:
            yield Case(title, cases.part(0, count).inputs, count, "rows")


def generated_cases(
    inputs: Sequence[TensorSpec], hints: GraphHints, *, length: int = LENGTHS_TRIED[0]
) -> list[Case]:
    """Make inputs with several distributions, numbers of rows and lengths.

    length: Length of variable dimensions; both models must accept it.
    """
    make = _Generator(inputs, hints)
    varies = any(spec.rows_vary for spec in inputs)
    several = 3 if varies else 1
    cases = [make.case(f"values {name}", several, length, spread=name) for name in SPREADS]
    if varies:
        mixed = make.case("7 rows of mixed sizes", 7, length, spread=None, purpose="rows")
        alone = [
            Case(
                f"row {row} of these, alone",
                {
                    spec.name: mixed.inputs[spec.name][row : row + 1]
                    if spec.rows_vary
                    else mixed.inputs[spec.name]
                    for spec in inputs
                },
                1,
                "rows",
                length,
            )
            for row in (0, 1)
        ]
        pair = make.case("2 rows", 2, length, purpose="rows")
        many = make.case("64 rows of mixed sizes", 64, length, spread=None, purpose="rows")
        cases += [pair, mixed, *alone, many]
    if length and make.open:
        others = [one for one in LENGTHS_TRIED if one != length][:3]
        cases += [make.case(f"length {one}", several, one, purpose="length") for one in others]
        long = make.case(f"length {LONG}", 1, LONG, purpose="length")
        cases += [long] if _elements(long) <= MAX_LONG_ELEMENTS else []
    if make.floats and hints.thresholds:
        cases.append(make.case("values at thresholds", 64 if varies else 1, length, spread="edges"))
    if make.floats:
        cases.append(make.case("with NaN", several, length, spread="NaN", purpose="missing"))
    return [case for case in cases if _elements(case) <= MAX_ELEMENTS] or cases[:1]


def _elements(case: Case) -> int:
    return sum(array.size for array in case.inputs.values())


class _Generator:
    def __init__(self, inputs: Sequence[TensorSpec], hints: GraphHints) -> None:
        self._inputs, self._hints = inputs, hints
        self.open = any(
            not isinstance(size, int) for spec in inputs for size in (spec.shape or ())[1:]
        )
        self.floats = any(BY_NAME[spec.datatype].kind == "float" for spec in inputs)

    def case(
        self,
        title: str,
        rows: int,
        length: int,
        *,
        spread: str | None = "of size 1",
        purpose: Purpose = "values",
    ) -> Case:
        """Make inputs of one kind; for `spread` None, rows of mixed sizes."""
        specs = [replace(spec, shape=self._shape(spec, rows, length)) for spec in self._inputs]
        if sum(prod(self._shape(spec, rows, length)) for spec in self._inputs) > MAX_ELEMENTS:
            rows = 1
            specs = [replace(spec, shape=self._shape(spec, 1, length)) for spec in self._inputs]
        arrays = synthetic_inputs(specs, rows, length)
        random = np.random.default_rng([rows, length])
        made = {spec.name: self._values(spec, arrays[spec.name], spread, random) for spec in specs}
        return Case(title, made, rows, purpose, length if self.open else 0)

    @staticmethod
    def _shape(spec: TensorSpec, rows: int, length: int) -> tuple[int, ...]:
        """Return lengths for all dimensions; those with the rows' symbol equal the rows."""
        shape = spec.shape or ()
        first = shape[0] if spec.rows_vary else None
        return tuple(
            size
            if isinstance(size, int)
            else rows
            if axis == 0 or (first is not None and size == first)
            else length
            for axis, size in enumerate(shape)
        )

    def _values(
        self, spec: TensorSpec, array: Array, spread: str | None, random: np.random.Generator
    ) -> Array:
        hint = self._hints.inputs.get(spec.name, InputHint())
        kind = BY_NAME[spec.datatype].kind
        if kind == "text":
            if not hint.words or spread is None:
                return array  # words unknown to the model
            chosen = random.integers(0, len(hint.words), array.shape)
            return np.asarray(np.array(hint.words, object)[chosen])
        if kind == "int":
            return _integers(spec, array, hint, spread, random)
        if kind == "bool" or spread is None:
            return array
        if spread == "edges":
            thresholds = np.unique(np.asarray(self._hints.thresholds, np.float32))
            return np.asarray(
                around([thresholds], array.size, missing=False).reshape(array.shape), array.dtype
            )
        normal = random.standard_normal(array.shape)
        if spread == "NaN":
            return np.where(random.random(array.shape) < 0.2, np.nan, normal).astype(array.dtype)
        return np.asarray(SPREADS[spread](normal)).astype(array.dtype)


def _integers(
    spec: TensorSpec,
    array: Array,
    hint: InputHint,
    spread: str | None,
    random: np.random.Generator,
) -> Array:
    """Make indices within their table, all byte values, or small numbers."""
    if spread in {"zeros", "small"} or "mask" in spec.name.lower():
        return np.zeros_like(array) if spread == "zeros" and hint.below else array
    most = 1 << min(BY_NAME[spec.datatype].bits - (spec.datatype[0] == "I"), 62)
    if hint.below:
        below = hint.below
    elif spec.datatype == "UINT8":
        below = 256
    else:
        below = INTEGERS_BELOW.get(spread or "", 2)
    return random.integers(0, min(below, most), array.shape).astype(array.dtype)
