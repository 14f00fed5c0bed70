"""Match the outputs of a model with those of its source, and make them comparable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cohort.errors import quoted
from cohort.tensors import Array, Arrays
from cohort_prepare.evaluating.cases import in_datatype, kind_of


@dataclass(frozen=True, slots=True, eq=False)
class Matched:
    """An output of the source and its counterpart in the model.

    name, matched: Names in the source and the model.
    comparable: True if shapes and kinds are now the same.
    """

    name: str
    matched: str
    expected: Array
    got: Array
    comparable: bool


@dataclass(frozen=True, slots=True)
class Pairing:
    """Matched outputs of both sides.

    missing: Outputs of the source that the model lacks.
    """

    pairs: Sequence[Matched]
    missing: Sequence[str]
    notes: Sequence[str]


def match_outputs(expected: Arrays, got: Arrays) -> Pairing:
    """Match outputs by name, then the rest in order, if shape and kind fit."""
    pairs, missing, notes = [], [], []
    left = [name for name in got if name not in expected]
    for name, wanted in expected.items():
        other = name
        if name not in got:
            fitting = [one for one in left if _fits(wanted, got[one])]
            if not fitting:
                missing.append(name)
                notes.append(f"the model lacks the source's output {quoted(name)}")
                continue
            other = fitting[0]
            left.remove(other)
            notes.append(
                f"output {quoted(name)} of the source is compared with the model's {quoted(other)}"
            )
        pair, note = _comparable(name, other, wanted, got[other])
        pairs.append(pair)
        notes += [note] if note else []
    notes += [f"output {quoted(name)} exists only in the model" for name in left]
    return Pairing(pairs, missing, notes)


def _fits(one: Array, other: Array) -> bool:
    return kind_of(one) == kind_of(other) and one.shape == other.shape


def _comparable(name: str, other: str, expected: Array, got: Array) -> tuple[Matched, str]:
    """Convert both to one shape and kind if that changes no value."""
    note = ""
    expected, got = (
        one.astype(object) if one.dtype.kind in "SU" else one for one in (expected, got)
    )
    if expected.shape != got.shape and _squeezed(expected) == _squeezed(got):
        note = (
            f"output {quoted(name)} has shape {list(got.shape)} in the model, but "
            f"{list(expected.shape)} in the source"
        )
        expected = expected.reshape(got.shape)
    kinds = {kind_of(expected), kind_of(got)}
    if len(kinds) > 1 and "text" not in kinds:
        note = note or (
            f"output {quoted(name)} is {got.dtype} in the model, but {expected.dtype} in the source"
        )
        expected, got = expected.astype(np.float64), got.astype(np.float64)
    elif kinds == {"float"} and expected.dtype != got.dtype:
        expected = in_datatype(expected, got.dtype)
    alike = expected.shape == got.shape and kind_of(expected) == kind_of(got)
    return Matched(name, other, expected, got, alike), note


def _squeezed(array: Array) -> tuple[int, ...]:
    return tuple(size for size in array.shape if size != 1)


LEVEL_WITHIN = 1e-5
"""Two scores that are closer are equal: rounding decides which is larger."""


def resolve_ties(expected: Arrays, got: Arrays) -> tuple[Arrays, int]:
    """Return expected outputs that are comparable with `got`, and the number of tied labels.

    Numbers of the same kind are cast to the datatype of `got`, if in range. For a row whose two
    best scores are equal, the label of `got` is used.
    """
    comparable = {
        name: in_datatype(value, got[name].dtype)
        if name in got and kind_of(got[name]) == kind_of(value)
        else value
        for name, value in expected.items()
    }
    label = comparable.get("label")
    scores = next(
        (comparable[name] for name in ("probabilities", "scores") if name in comparable), None
    )
    if label is None or scores is None or label.shape != scores.shape[:1] or scores.ndim != 2:
        return comparable, 0
    if "label" not in got or got["label"].shape != label.shape or scores.shape[1] < 2:
        return comparable, 0
    best = np.sort(scores.astype(np.float64), axis=1)[:, -2:]
    level = (best[:, 1] - best[:, 0] <= LEVEL_WITHIN * np.maximum(1, np.abs(best[:, 1]))) & (
        label != got["label"]
    )
    comparable["label"] = np.where(level, got["label"], label).astype(label.dtype)
    return comparable, int(level.sum())
