"""How far the outputs for one request differ: measured in one way, judged by a stated criterion.

A criterion says which differences count: `Tolerance` and `Rounding` how far numbers may differ,
`SameDecision` whether a reader of the outputs would decide otherwise; for `SameBits`, every one
does. All of them are symmetric.
For all of them NaN is equal to NaN and infinity to itself, a NaN or an infinity on one side only
is a difference, and whole numbers, booleans and text must be equal.

`compare` takes many pairs at once: one pair of small outputs takes 50 µs, most of it numpy's
calls, and one of 64 alike about five.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from cohort.errors import quoted
from cohort.tensors import BY_DTYPE, Array, Datatype, Kind

Numbers = NDArray[np.float64]
Flags = NDArray[np.bool_]


class Pair(NamedTuple):
    """The outputs of two versions, or of two runs, for the same request, by name."""

    expected: Mapping[str, Array]
    got: Mapping[str, Array]


class OutputDifference(NamedTuple):
    """One output of one pair.

    `largest` and `relative` are its largest absolute and relative differences, the latter relative
    to the larger of the two numbers. Both are None for text and booleans, and where shapes, or the
    kinds of elements, cannot be compared; infinite where a NaN or an infinity is on one side only.
    """

    output: str
    disagrees: bool
    largest: float | None = None
    relative: float | None = None


class Measured(NamedTuple):
    """One output of pairs with the same shapes, stacked: axis 0 is the pair. Floats are float64.

    datatype: Of the output.
    expected, got: The two sides.
    unequal: Where they differ at all.
    distance: The absolute difference, infinite where a NaN or an infinity is on one side only;
        None for text and booleans.
    size: The larger magnitude of both sides, 0 where it is not finite; None for text and booleans.
    """

    datatype: Datatype
    expected: Array
    got: Array
    unequal: Flags
    distance: Numbers | None = None
    size: Numbers | None = None

    @property
    def kind(self) -> Kind:
        """What the elements are."""
        return self.datatype.kind

    def largest(self) -> tuple[Numbers, Numbers]:
        """The largest absolute and the largest relative difference of each pair."""
        if self.distance is None or self.size is None:
            raise ValueError("text and booleans have no distance")
        with np.errstate(invalid="ignore", divide="ignore"):
            relative = np.where(self.distance > 0, self.distance / self.size, 0.0)
        return _maxima(self.distance), _maxima(relative)


class Criterion(Protocol):
    """Which differences count. `same_datatype`: whether FP16 beside FP32 is one."""

    same_datatype: ClassVar[bool]

    def breaches(self, measured: Measured) -> Flags:
        """True where there is a difference that counts; axis 0 is the pair."""

    def explain(self, measured: Measured) -> str:
        """Describe the breaches of a single pair: "is off by 0.5 at [1], …"."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Floats may differ by `absolute`, plus `relative` times the larger of the two numbers."""

    absolute: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1e-5
    relative: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1e-4

    same_datatype: ClassVar[bool] = True

    def breaches(self, measured: Measured) -> Flags:
        """True where the tolerance is exceeded; other than floats must be equal."""
        if measured.kind != "float" or measured.distance is None or measured.size is None:
            return measured.unequal
        return np.asarray(measured.distance > self.absolute + self.relative * measured.size)

    def explain(self, measured: Measured) -> str:
        """Describe the breaches of a single pair."""
        allowed = f"{self.absolute:g} + {self.relative:g} x the value"
        return _explain_distance(measured, self.breaches(measured), allowed)


@dataclass(frozen=True, slots=True)
class Rounding:
    """Floats may differ by `share` of the largest number of the output, on either side.

    `share_16_bits` is for floats of 16 bits and fewer.
    """

    share: float
    share_16_bits: float

    same_datatype: ClassVar[bool] = True

    def breaches(self, measured: Measured) -> Flags:
        """True where the share is exceeded; other than floats must be equal."""
        if measured.kind != "float" or measured.distance is None or measured.size is None:
            return measured.unequal
        largest = _maxima(measured.size).reshape(-1, *[1] * (measured.size.ndim - 1))
        return np.asarray(measured.distance > self._share(measured) * largest)

    def explain(self, measured: Measured) -> str:
        """Describe the breaches of a single pair."""
        allowed = f"{self._share(measured):g} x the output's largest value"
        return _explain_distance(measured, self.breaches(measured), allowed)

    def _share(self, measured: Measured) -> float:
        return self.share_16_bits if measured.datatype.bits <= 16 else self.share


@dataclass(frozen=True, slots=True)
class RoundingByPlace:
    """Floats may differ by a `share` of the largest number in the same place of any pair.

    And by the share `of_largest` of the output's largest number: where numbers cancel out, the
    rounding of larger ones is left. Each first for floats of 32 bits and more, then for shorter.

    A `Rounding` would let a score between 0 and 1 differ by any amount beside a box in pixels.
    """

    share: tuple[float, float]
    of_largest: tuple[float, float]
    floats_only: bool = False

    same_datatype: ClassVar[bool] = True

    def breaches(self, measured: Measured) -> Flags:
        """True where more is exceeded; other than floats must be equal, unless `floats_only`."""
        if measured.kind != "float" or measured.distance is None or measured.size is None:
            return np.zeros_like(measured.unequal) if self.floats_only else measured.unequal
        is_short = measured.datatype.bits <= 16
        places = measured.size.max(0, initial=0.0)
        largest = places.max(initial=0.0)
        allowed = self.share[is_short] * places + self.of_largest[is_short] * largest
        return np.asarray(measured.distance > allowed)

    def explain(self, measured: Measured) -> str:
        """Describe the breaches of a single pair."""
        allowed = f"{self.share[measured.datatype.bits <= 16]:g} x the place's largest value"
        return _explain_distance(measured, self.breaches(measured), allowed)


@dataclass(frozen=True, slots=True)
class SameDecision:
    """Scores must have the same argmax along the last axis; other floats may differ by any amount.

    Scores are floats of two dimensions or more, the last longer than 1.
    """

    same_datatype: ClassVar[bool] = False

    def breaches(self, measured: Measured) -> Flags:
        """True where the argmax differs, or a NaN or an infinity is on one side only."""
        if measured.kind != "float" or measured.distance is None:
            return measured.unequal
        return choose_otherwise(measured) if _are_scores(measured) else np.isinf(measured.distance)

    def explain(self, measured: Measured) -> str:
        """Describe the breaches of a single pair."""
        breaches = self.breaches(measured)
        if measured.kind == "float" and _are_scores(measured):
            return f"has another argmax in {np.count_nonzero(breaches)} of {breaches.size} places"
        return _explain_distance(measured, breaches, "any finite difference")


@dataclass(frozen=True, slots=True)
class SameBits:
    """All bits must be equal, but for those of a NaN."""

    same_datatype: ClassVar[bool] = True

    def breaches(self, measured: Measured) -> Flags:
        """True where numbers differ at all, 0 from -0, too."""
        if measured.kind != "float":
            return measured.unequal
        signs = np.signbit(measured.expected) != np.signbit(measured.got)
        return np.asarray(measured.unequal | (signs & (measured.expected == 0)))

    def explain(self, measured: Measured) -> str:
        """Describe the breaches of a single pair."""
        return _explain_distance(measured, self.breaches(measured), "none")


SAME_MODEL = Tolerance(1e-5, 1e-4)
"""The same file on another machine: kernels differ in the order of additions, not in more."""

ROUNDING = Rounding(0.01, 0.05)
"""The same row in another batch: the order of additions depends on the number of rows, while rows
that influence each other differ by far more."""

SAME_ROW = RoundingByPlace((0.01, 0.05), (1e-4, 5e-3))
"""The same row in another run of the same model, among other rows."""

ROUNDED_ONCE_MORE = RoundingByPlace((0.1, 0.2), (0.02, 0.05), floats_only=True)
"""The same row in a run of another size, of a model whose rows are proven to be independent: the
last bit of a number decides to which whole one it is rounded, inside the model or at its end."""

SAME_BITS = SameBits()

SAME_DECISION = SameDecision()
"""Another version, which may well give other numbers, yet should rarely decide otherwise."""


def compare(pairs: Sequence[Pair], criterion: Criterion) -> list[list[OutputDifference]]:
    """Compare pairs, those with the same shapes in one go; for each, its outputs in order.

    Outputs that only `got` has are not compared.
    """
    groups: dict[object, list[int]] = {}
    for place, pair in enumerate(pairs):
        groups.setdefault(_layout(pair), []).append(place)
    if len(groups) == 1:
        return _compare_alike(pairs, criterion)
    found: dict[int, list[OutputDifference]] = {}
    for places in groups.values():
        differences = _compare_alike([pairs[place] for place in places], criterion)
        found.update(zip(places, differences, strict=True))
    return [found[place] for place in range(len(pairs))]


def explain(pair: Pair, criterion: Criterion) -> str:
    """Describe where `pair` differs and how far, a sentence per output; "" where it agrees."""
    sentences = []
    for name, expected in pair.expected.items():
        got = pair.got.get(name)
        reason = _incomparable(expected, got, criterion)
        if not reason and got is not None:
            measured = measure_arrays(_stack([expected]), _stack([got]))
            if criterion.breaches(measured).any():
                reason = criterion.explain(measured)
        if reason:
            sentences.append(f"output {quoted(name)} {reason}")
    return "; ".join(sentences)


def _layout(pair: Pair) -> tuple[object, ...]:
    """What pairs must have in common to be stacked."""
    expected, got = pair
    return (
        *[(name, array.dtype.num, array.shape) for name, array in expected.items()],
        *[(name, array.dtype.num, array.shape) for name, array in got.items()],
    )


def _compare_alike(pairs: Sequence[Pair], criterion: Criterion) -> list[list[OutputDifference]]:
    columns = []
    for name, expected in pairs[0].expected.items():
        if _incomparable(expected, pairs[0].got.get(name), criterion):
            columns.append([OutputDifference(name, True)] * len(pairs))
            continue
        measured = measure_arrays(
            _stack([pair.expected[name] for pair in pairs]),
            _stack([pair.got[name] for pair in pairs]),
        )
        disagrees = _any(criterion.breaches(measured)).tolist()
        if measured.distance is None:
            columns.append([OutputDifference(name, one) for one in disagrees])
        else:
            largest, relative = measured.largest()
            rows = zip(disagrees, largest.tolist(), relative.tolist(), strict=True)
            columns.append([OutputDifference(name, *row) for row in rows])
    return [list(row) for row in zip(*columns, strict=True)] if columns else [[] for _ in pairs]


def _incomparable(expected: Array, got: Array | None, criterion: Criterion) -> str:
    """Why the two cannot be compared, "" where they can."""
    if got is None:
        return "is missing"
    if expected.dtype == got.dtype:
        comparable = True
    else:
        kinds = [BY_DTYPE[array.dtype].kind for array in (expected, got)]
        comparable = kinds[0] == kinds[1] and not criterion.same_datatype
    if comparable and expected.shape == got.shape:
        return ""
    return (
        f"is {got.dtype} of shape {list(got.shape)}, "
        f"expected {expected.dtype} of shape {list(expected.shape)}"
    )


MOST_AXES = 64
"""Of a numpy array. Where a pair has them all, its first two are one in the stack."""


def _stack(arrays: Sequence[Array]) -> Array:
    first = arrays[0]
    if not first.ndim:
        return np.array(arrays, first.dtype)
    shape = first.shape
    if first.ndim == MOST_AXES:
        shape = (shape[0] * shape[1], *shape[2:])
    return np.concatenate(arrays).reshape(len(arrays), *shape)  # np.stack takes 1 µs for each


def measure_arrays(expected: Array, got: Array) -> Measured:
    """Measure how far arrays of one shape and kind are apart; axis 0 is the pair."""
    datatype = BY_DTYPE[expected.dtype]
    if datatype.kind in {"text", "bool"}:
        return Measured(datatype, expected, got, np.asarray(expected != got, bool))
    one, other = expected.astype(np.float64), got.astype(np.float64)
    sizes = np.maximum(np.abs(one), np.abs(other))
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.abs(one - other)
    if datatype.kind == "int":
        same = expected.dtype == got.dtype  # ml_dtypes' compare with their own only
        exact = same or min(expected.itemsize, got.itemsize) > 1
        unequal = np.asarray(expected != got, bool) if exact else one != other
        return Measured(datatype, expected, got, unequal, distance, sizes)
    unequal = one != other
    finite = np.isfinite(sizes)
    if not finite.all():
        unequal &= ~(np.isnan(one) & np.isnan(other))
        distance[~finite] = np.where(unequal, np.inf, 0.0)[~finite]
        sizes[~finite] = 0.0
    return Measured(datatype, one, other, unequal, distance, sizes)


def choose_otherwise(measured: Measured) -> Flags:
    """True where the argmax of floats along the last axis differs, or a NaN or an infinity is on
    one side only. Of equal numbers the first is chosen. Raises ValueError where the axis is empty.
    """
    if measured.distance is None:
        raise ValueError("text and booleans have no argmax")
    best = [side.argmax(-1) for side in (measured.expected, measured.got)]
    return np.asarray(np.isinf(measured.distance).any(-1) | (best[0] != best[1]))


def _are_scores(measured: Measured) -> bool:
    """Whether there is a last axis, besides the pairs' and another, to choose along."""
    return measured.got.ndim > 2 and measured.got.shape[-1] > 1 and measured.got.size > 0


def _explain_distance(measured: Measured, breaches: Flags, allowed: str) -> str:
    if measured.distance is None or measured.kind != "float":
        return f"differs in {np.count_nonzero(breaches)} of {breaches.size} values"
    if (one_sided := np.isinf(measured.distance) & (measured.size == 0)).any():
        return f"differs in NaN or infinity at {_first(one_sided)}"
    beyond = np.where(breaches, measured.distance, 0.0)
    worst = float(beyond.max())
    return (
        f"is off by {worst:.3g} at {_first(beyond == worst)}, in {np.count_nonzero(breaches)} of "
        f"{breaches.size} values (tolerance {allowed})"
    )


def _first(flags: NDArray[Any]) -> str:
    """Where in a single pair the first of `flags` is."""
    return str(np.argwhere(flags)[0][1:].tolist())


def _maxima(values: Numbers) -> Numbers:
    maxima: Numbers = values.reshape(len(values), -1).max(1, initial=0.0)
    return maxima


def _any(values: Flags) -> Flags:
    found: Flags = np.logical_or.reduce(values.reshape(len(values), -1), axis=1)
    return found
