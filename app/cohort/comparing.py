"""Comparison of two sets of outputs for one request, judged by a criterion.

A criterion defines which differences count. `Tolerance` and `Rounding` limit how far numbers may
differ. `SameDecision` compares the decision that a reader of the outputs would make. For
`SameBits`, every difference counts. All criteria are symmetric. NaN equals NaN, and infinity
equals itself. A NaN or an infinity on one side only is a difference. Whole numbers, booleans and
text must be equal.

`compare` accepts many pairs at once. One pair of small outputs takes 50 µs, mostly in numpy's
calls. In a group of 64 with the same shapes, a pair takes about 5 µs.
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
    """The difference of one output of one pair.

    `largest` and `relative` are its largest absolute and relative differences, the latter relative
    to the larger of the two numbers. Both are None for text and booleans, and if shapes or kinds of
    elements cannot be compared. Both are infinite if a NaN or an infinity is on one side only.
    """

    output: str
    disagrees: bool
    largest: float | None = None
    relative: float | None = None


class Measured(NamedTuple):
    """One output of pairs with the same shapes, stacked: axis 0 is the pair. Floats are float64.

    datatype: The output's datatype.
    expected, got: The two sides.
    unequal: True for each element that differs.
    distance: The absolute difference; infinite if a NaN or an infinity is on one side only; default
        None: text or booleans.
    size: The larger magnitude of both sides; 0 if not finite; default None: text or booleans.
    """

    datatype: Datatype
    expected: Array
    got: Array
    unequal: Flags
    distance: Numbers | None = None
    size: Numbers | None = None

    @property
    def kind(self) -> Kind:
        """The kind of the elements."""
        return self.datatype.kind

    def largest(self) -> tuple[Numbers, Numbers]:
        """Return the largest absolute and the largest relative difference of each pair."""
        if self.distance is None or self.size is None:
            raise ValueError("text and booleans have no distance")
        with np.errstate(invalid="ignore", divide="ignore"):
            relative = np.where(self.distance > 0, self.distance / self.size, 0.0)
        return _maxima(self.distance), _maxima(relative)


class Criterion(Protocol):
    """A rule for which differences count; with `same_datatype`, FP16 and FP32 differ."""

    same_datatype: ClassVar[bool]

    def breaches(self, measured: Measured) -> Flags:
        """Return True for each element whose difference counts; axis 0 is the pair."""

    def explain(self, measured: Measured) -> str:
        """Describe the breaches of a single pair: "is off by 0.5 at [1], …"."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """A criterion: floats may differ by `absolute` plus `relative` times the larger number."""

    absolute: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1e-5
    relative: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1e-4

    same_datatype: ClassVar[bool] = True

    def breaches(self, measured: Measured) -> Flags:
        """Return True for each float beyond the tolerance, and each other unequal element."""
        if measured.kind != "float" or measured.distance is None or measured.size is None:
            return measured.unequal
        return np.asarray(measured.distance > self.absolute + self.relative * measured.size)

    def explain(self, measured: Measured) -> str:
        """Describe the breaches of a single pair."""
        allowed = f"{self.absolute:g} + {self.relative:g} x the value"
        return _explain_distance(measured, self.breaches(measured), allowed)


@dataclass(frozen=True, slots=True)
class Rounding:
    """A criterion: floats may differ by `share` of the output's largest number on either side.

    `share_16_bits` is for floats of 16 bits and fewer.
    """

    share: float
    share_16_bits: float

    same_datatype: ClassVar[bool] = True

    def breaches(self, measured: Measured) -> Flags:
        """Return True for each float beyond the share, and each other unequal element."""
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
    """A criterion: floats may differ by a `share` of the place's largest number in all pairs.

    They may also differ by the share `of_largest` of the output's largest number: if numbers cancel
    out, the rounding of larger ones remains. The first number of each share is for floats of 32
    bits and more, the second for shorter ones.

    A `Rounding` would let a score from 0 to 1 differ by any amount if boxes in pixels are in the
    same output.
    """

    share: tuple[float, float]
    of_largest: tuple[float, float]
    floats_only: bool = False

    same_datatype: ClassVar[bool] = True

    def breaches(self, measured: Measured) -> Flags:
        """Return True for each float beyond the limit, and, unless `floats_only`, other changes."""
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
    """A criterion: scores must have the same argmax along the last axis; other floats may differ.

    Scores are floats of two dimensions or more, the last longer than 1.
    """

    same_datatype: ClassVar[bool] = False

    def breaches(self, measured: Measured) -> Flags:
        """Return True if the argmax differs, or a NaN or an infinity is on one side only."""
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
    """A criterion: all bits must be equal, except those of a NaN."""

    same_datatype: ClassVar[bool] = True

    def breaches(self, measured: Measured) -> Flags:
        """Return True for each element that differs; 0 and -0 differ."""
        if measured.kind != "float":
            return measured.unequal
        signs = np.signbit(measured.expected) != np.signbit(measured.got)
        return np.asarray(measured.unequal | (signs & (measured.expected == 0)))

    def explain(self, measured: Measured) -> str:
        """Describe the breaches of a single pair."""
        return _explain_distance(measured, self.breaches(measured), "none")


SAME_MODEL = Tolerance(1e-5, 1e-4)
"""For the same file on another machine: kernels differ only in the order of additions."""

ROUNDING = Rounding(0.01, 0.05)
"""For the same row in another batch: the order of additions depends on the number of rows. Rows
that influence each other differ by far more."""

SAME_ROW = RoundingByPlace((0.01, 0.05), (1e-4, 5e-3))
"""For the same row in another run of the same model, among other rows."""

ROUNDED_ONCE_MORE = RoundingByPlace((0.1, 0.2), (0.02, 0.05), floats_only=True)
"""For the same row in a run of another size, if the model's rows are proven to be independent. The
last bit of a number may decide to which whole number the model rounds it, inside or at its end."""

SAME_BITS = SameBits()

SAME_DECISION = SameDecision()
"""For another version, which may return other numbers but should rarely decide differently."""


def compare(pairs: Sequence[Pair], criterion: Criterion) -> list[list[OutputDifference]]:
    """Compare pairs; return the differences of each pair's outputs, in order.

    Pairs with the same shapes are compared together. Outputs that only `got` has are ignored.
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
    """Describe the differences of `pair`, one sentence per output; "" if there are none."""
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
    """Return a key that is equal for pairs that can be stacked: names, datatypes and shapes."""
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
    """Return why the two arrays cannot be compared; "" if they can."""
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


MAX_AXES = 64
"""numpy's limit of axes. At the limit, the stack merges the first two axes of a pair."""


def _stack(arrays: Sequence[Array]) -> Array:
    first = arrays[0]
    if not first.ndim:
        return np.array(arrays, first.dtype)
    shape = first.shape
    if first.ndim == MAX_AXES:
        shape = (shape[0] * shape[1], *shape[2:])
    return np.concatenate(arrays).reshape(len(arrays), *shape)  # np.stack takes 1 µs for each


def measure_arrays(expected: Array, got: Array) -> Measured:
    """Measure the differences of two arrays of one shape and kind; axis 0 is the pair."""
    datatype = BY_DTYPE[expected.dtype]
    if datatype.kind in {"text", "bool"}:
        return Measured(datatype, expected, got, np.asarray(expected != got, bool))
    one, other = expected.astype(np.float64), got.astype(np.float64)
    sizes = np.maximum(np.abs(one), np.abs(other))
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.abs(one - other)
    if datatype.kind == "int":
        same = expected.dtype == got.dtype  # ml_dtypes compare only with the same dtype
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
    """Return True if the argmax of floats along the last axis differs.

    A NaN or an infinity on one side only also counts. Of equal numbers, the first is chosen. Raises
    ValueError if the axis is empty, or for text and booleans.
    """
    if measured.distance is None:
        raise ValueError("text and booleans have no argmax")
    best = [side.argmax(-1) for side in (measured.expected, measured.got)]
    return np.asarray(np.isinf(measured.distance).any(-1) | (best[0] != best[1]))


def _are_scores(measured: Measured) -> bool:
    """Return True for three axes or more (the first is the pair), the last longer than 1."""
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
    """Return the index of the first True in `flags`, within a single pair."""
    return str(np.argwhere(flags)[0][1:].tolist())


def _maxima(values: Numbers) -> Numbers:
    maxima: Numbers = values.reshape(len(values), -1).max(1, initial=0.0)
    return maxima


def _any(values: Flags) -> Flags:
    found: Flags = np.logical_or.reduce(values.reshape(len(values), -1), axis=1)
    return found
