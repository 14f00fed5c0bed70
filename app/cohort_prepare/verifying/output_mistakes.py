"""Find mistakes that show in outputs alone: a function of one side gives the other exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import permutations

import numpy as np

from cohort.comparing import Numbers
from cohort.errors import quoted
from cohort.tensors import Array
from cohort_prepare.evaluating.differences import measure_rows
from cohort_prepare.evaluating.pairing import match_outputs
from cohort_prepare.verifying.comparison import ComparedCase, ModelAnswer, ratios
from cohort_prepare.verifying.tolerance import Allowed

ROWS_ORDERED = 256
"""Rows in which another order of columns is looked for."""

COLUMNS_ORDERED = 256

Sides = list[tuple[Array, Array]]
"""An output of the source and the model, by case."""


def same_outputs(one: ModelAnswer, other: ModelAnswer, allowed: Allowed) -> bool:
    """Return True if two answers agree, or both are failures."""
    if isinstance(one, str) or isinstance(other, str):
        return isinstance(one, str) and isinstance(other, str)
    matched = match_outputs(one, other)
    return not matched.missing and all(
        pair.comparable and same(pair.expected, pair.got, allowed) for pair in matched.pairs
    )


def same(expected: Array, got: Array, allowed: Allowed) -> bool:
    """Return True if two arrays agree in all rows."""
    if expected.shape != got.shape:
        return False
    return bool((ratios(measure_rows(expected, got), allowed) <= 1).all())


def find_output_mistake(cases: Sequence[ComparedCase], allowed: Allowed) -> str:
    """Return a description of the mistake that explains all cases, or ""."""
    answered = [one for one in cases if one.got is not None and one.counts]
    if not answered:
        return ""
    for name in answered[0].expected:
        sides = [
            (one.expected[name], (one.got or {})[name])
            for one in answered
            if name in one.expected and name in (one.got or {})
        ]
        if not sides or all(same_kind_of(*side, allowed) for side in sides):
            continue
        for find in (_function, _order, _axes, _sums, _linear, _labels):
            if reason := find(sides, allowed):
                return f"output {quoted(name)}: {reason}"
    return ""


def same_kind_of(expected: Array, got: Array, allowed: Allowed) -> bool:
    """Return True if two arrays have the same datatype and agree."""
    return expected.dtype == got.dtype and same(expected, got, allowed)


def softmax(scores: Array) -> Array:
    """Apply softmax along the last axis, in FP64."""
    numbers = np.asarray(scores, np.float64)
    powers = np.exp(numbers - numbers.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def sigmoid(scores: Array) -> Array:
    """Compute 1 / (1 + exp(-x)) in FP64."""
    return np.asarray(1 / (1 + np.exp(-np.asarray(scores, np.float64))))


def _exp(scores: Array) -> Array:
    return np.asarray(np.exp(np.asarray(scores, np.float64)))


FUNCTIONS: Sequence[tuple[str, Callable[[Array], Array], str, str]] = (
    (
        *("softmax", softmax),
        "the model returns logits: add a softmax to the exported model, or apply it in the client",
        "the source returns logits: export the model without its softmax, or compare with the "
        "source's probabilities",
    ),
    (
        *("sigmoid", sigmoid),
        "the model returns logits: add a sigmoid to the exported model, or apply it in the client",
        "the source returns logits: export the model without its sigmoid, or compare with the "
        "source's probabilities",
    ),
    (
        *("exp", _exp),
        "the model returns logarithms: export the probabilities",
        "the source returns logarithms: export these",
    ),
)

TWICE = "it is applied twice; remove one, usually the one next to the loss"


def _function(sides: Sides, allowed: Allowed) -> str:
    if not _numbers(sides):
        return ""
    for name, function, of_model, of_source in FUNCTIONS:
        if name == "softmax" and any(one.ndim < 2 or one.shape[-1] < 2 for one, _ in sides):
            continue
        with np.errstate(all="ignore"):
            if all(same(np.asarray(e, np.float64), function(g), allowed) for e, g in sides):
                return f"{name} of the model's output is the source's: {of_model}"
            if all(same(function(e), np.asarray(g, np.float64), allowed) for e, g in sides):
                twice = name == "softmax" and all(_sums_to_one(e) for e, _ in sides)
                return (
                    f"{name} of the source's output is the model's: {TWICE if twice else of_source}"
                )
    return ""


def _sums_to_one(array: Array) -> bool:
    numbers = np.asarray(array, np.float64)
    return bool((numbers >= 0).all() and np.allclose(numbers.sum(-1), 1, atol=1e-3))


def _numbers(sides: Sides) -> bool:
    return all(
        e.shape == g.shape and e.size and e.dtype.kind == "f" and g.dtype.kind == "f"
        for e, g in sides
    )


def _stack(sides: Sides) -> tuple[Numbers, Numbers]:
    """Stack the rows of all cases, up to ROWS_ORDERED."""
    stacked = [
        np.concatenate([np.asarray(side[place], np.float64) for side in sides])[:ROWS_ORDERED]
        for place in (0, 1)
    ]
    return stacked[0], stacked[1]


def _order(sides: Sides, allowed: Allowed) -> str:
    """Test if the columns are the source's in another order."""
    if not _numbers(sides) or len({e.shape[1:] for e, _ in sides}) > 1 or sides[0][0].ndim != 2:
        return ""
    columns = sides[0][0].shape[1]
    if not 1 < columns <= COLUMNS_ORDERED:
        return ""
    expected, got = _stack(sides)
    with np.errstate(invalid="ignore"):
        distance = np.abs(expected[:, :, None] - got[:, None, :]).max(0)
    places = distance.argmin(1)
    if len(set(places.tolist())) < columns or not same(expected, got[:, places], allowed):
        return ""
    shift = int(places[0])
    if places.tolist() == [(one + shift) % columns for one in range(columns)]:
        seen = f"shifted by {shift}"
    else:
        moved = [
            f"{one} is the model's {place}" for one, place in enumerate(places) if one != place
        ]
        seen = f"in another order (the source's column {'; '.join(moved[:4])})"
    return (
        f"its columns are the source's {seen}: use the source's class order (its classes_, or its "
        "list of names, with or without a background class)"
    )


def _axes(sides: Sides, allowed: Allowed) -> str:
    ndim = sides[0][0].ndim
    if not 2 <= ndim <= 5:
        return ""
    for axes in permutations(range(ndim)):
        if axes != tuple(range(ndim)) and all(
            e.ndim == g.ndim == ndim
            and e.dtype.kind == g.dtype.kind == "f"
            and same(np.asarray(e, np.float64), np.asarray(g.transpose(axes), np.float64), allowed)
            for e, g in sides
        ):
            return (
                f"equal after transposing the model's axes to {list(axes)}: the layouts differ "
                "(NCHW and NHWC?); add or remove a transpose before the output"
            )
    return ""


def _sums(sides: Sides, _: Allowed) -> str:
    """Test if the source sums to 1 along the last axis, and the model over all axes but rows."""
    if not _numbers(sides) or any(e.ndim < 3 for e, _ in sides):
        return ""
    if not all(_sums_to_one(e) and _sums_to_one(g.reshape(len(g), -1)) for e, g in sides):
        return ""
    return (
        "the two sum to 1 along other axes: before opset 13, Softmax merged all following axes. "
        "Convert the opset with onnx.version_converter instead of changing its number, or export "
        "at opset 13 or higher"
    )


def _linear(sides: Sides, allowed: Allowed) -> str:
    """Test if the model's output is a linear function of the source's."""
    if not _numbers(sides):
        return ""
    expected = np.concatenate([np.asarray(e, np.float64).reshape(-1) for e, _ in sides])
    got = np.concatenate([np.asarray(g, np.float64).reshape(-1) for _, g in sides])
    if expected.size < 4 or not (np.isfinite(expected) & np.isfinite(got)).all():
        return ""
    center = expected - expected.mean()
    if not center.any():
        return ""
    factor = float(center @ got / (center @ center))
    offset = float(got.mean() - factor * expected.mean())
    fits = all(
        same(np.asarray(e, np.float64) * factor + offset, np.asarray(g, np.float64), allowed)
        for e, g in sides
    )
    if not fits or factor == 0:
        return ""
    return (
        f"the model's output is the source's times {factor:.6g}, plus {offset:.6g}: a last step "
        "was omitted or applied twice (base score, mean for sum, target scaling)"
    )


def _labels(sides: Sides, _: Allowed) -> str:
    """Test if each of the source's labels corresponds to one of the model's."""
    pairs: dict[object, object] = {}
    for one, other in _elements(sides):
        if pairs.setdefault(one, other) != other:
            return ""
    if len(pairs) < 2 or len(set(map(str, pairs.values()))) < len(pairs):
        return ""
    if all(str(one) == str(other) for one, other in pairs.items()):
        return "labels differ only in their datatype: return text or integers as the source does"
    shown = ", ".join(f"{one!r} is {other!r}" for one, other in list(pairs.items())[:4])
    return (
        f"labels are encoded differently ({shown}): export the source's labels (its "
        "LabelEncoder, classes_), or write them as the model's classes"
    )


def _elements(sides: Sides) -> Iterator[tuple[object, object]]:
    for expected, got in sides:
        if expected.shape == got.shape and expected.dtype.kind != "f" and got.dtype.kind != "f":
            yield from zip(expected.reshape(-1).tolist(), got.reshape(-1).tolist(), strict=True)
