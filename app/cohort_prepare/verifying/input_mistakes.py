"""Find mistakes in the inputs: with changed inputs, the model agrees with its source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from cohort.errors import quoted
from cohort.tensors import Array, Arrays
from cohort_prepare.verifying.comparison import ComparedCase, RunCases
from cohort_prepare.verifying.output_mistakes import same_outputs
from cohort_prepare.verifying.tolerance import Allowed

MAX_SWAPPED = 32
"""Maximum number of columns for which all pairs are tried."""


@dataclass(frozen=True, slots=True)
class Guess:
    """A possible change of the inputs, and the fix for it."""

    change: Callable[[Arrays], Arrays]
    seen: str


def find_input_mistake(off: Sequence[ComparedCase], candidate: RunCases, allowed: Allowed) -> str:
    """Return the first guess for which the model agrees on all of `off`, or ""."""
    if not off:
        return ""
    for guess in _guesses(off[0].case.inputs):
        if all(_explains(guess, one, candidate, allowed) for one in off):
            return f"the model agrees if {guess.seen}"
    return ""


def _explains(guess: Guess, one: ComparedCase, candidate: RunCases, allowed: Allowed) -> bool:
    try:
        changed = guess.change(one.case.inputs)
    except (ValueError, IndexError):
        return False
    (answer,) = candidate([changed])
    return not isinstance(answer, str) and same_outputs(one.expected, answer, allowed)


def _guesses(inputs: Arrays) -> Iterator[Guess]:
    for one, other in combinations(inputs, 2):
        if inputs[one].dtype == inputs[other].dtype and inputs[one].shape == inputs[other].shape:
            yield Guess(
                lambda arrays, one=one, other=other: {  # type: ignore[misc]
                    **arrays,
                    one: arrays[other],
                    other: arrays[one],
                },
                f"inputs {quoted(one)} and {quoted(other)} are swapped: swap their names in the "
                "model, or their order at export",
            )
    for name, array in inputs.items():
        if array.dtype.kind == "f":
            for change, seen in _changes(array):
                yield Guess(
                    lambda arrays, name=name, change=change: {  # type: ignore[misc]
                        **arrays,
                        name: change(arrays[name]),
                    },
                    f"input {quoted(name)} {seen}",
                )


def _changes(array: Array) -> Iterator[tuple[Callable[[Array], Array], str]]:
    def number(factor: float, offset: float) -> Callable[[Array], Array]:
        return lambda values: np.asarray(values * factor + offset, values.dtype)  # type: ignore[operator]

    left_out = "preprocessing was omitted; add it to the model, or to the client"
    yield number(1 / 255, 0), f"is divided by 255: {left_out}"
    yield number(1 / 127.5, -1), f"is scaled to -1 to 1 (x / 127.5 - 1): {left_out}"
    yield number(255, 0), "is multiplied by 255: preprocessing is applied twice; remove one"
    order = "use the order of the source's training columns"
    if array.ndim == 2 and array.shape[1] > 1:
        columns = array.shape[1]
        yield lambda values: values[:, ::-1], f"has its columns reversed: {order}"
        if columns <= MAX_SWAPPED:
            for one, other in combinations(range(columns), 2):
                places = list(range(columns))
                places[one], places[other] = other, one
                yield (
                    lambda values, places=places: values[:, places],  # type: ignore[misc]
                    f"has its columns {one} and {other} swapped: {order}",
                )
        yield from _shifts(columns, order)
    if array.ndim == 4:
        layout = "export it with the source's layout, or add a transpose after the input"
        yield _read_as((0, 2, 3, 1)), f"is read as NHWC instead of NCHW: {layout}"
        yield _read_as((0, 3, 1, 2)), f"is read as NCHW instead of NHWC: {layout}"
        yield _transposed_from((0, 2, 3, 1)), f"is read as NHWC instead of NCHW: {layout}"
        yield _transposed_from((0, 3, 1, 2)), f"is read as NCHW instead of NHWC: {layout}"
        yield lambda values: values.transpose(0, 1, 3, 2), f"has its last axes swapped: {layout}"
        yield lambda values: values.transpose(0, 2, 1, 3), f"has height and width swapped: {layout}"
        for axis in (1, 3):
            if array.shape[axis] == 3:
                yield (
                    lambda values, axis=axis: np.flip(values, axis),  # type: ignore[misc]
                    "has its channels reversed (RGB and BGR): use the source's order",
                )


def _shifts(columns: int, order: str) -> Iterator[tuple[Callable[[Array], Array], str]]:
    for shift in {1, columns - 1}:
        yield (
            lambda values, shift=shift: np.roll(values, shift, 1),  # type: ignore[misc]
            f"has its columns shifted by {shift}: {order}",
        )


def _read_as(axes: tuple[int, ...]) -> Callable[[Array], Array]:
    """Reorder memory as a reshape used instead of a transpose would."""
    return lambda values: np.ascontiguousarray(values.transpose(axes)).reshape(values.shape)


def _transposed_from(axes: tuple[int, ...]) -> Callable[[Array], Array]:
    """Undo the effect that a transpose by `axes` in the model has on the source's memory."""
    return lambda values: values.reshape([values.shape[axis] for axis in axes]).transpose(
        np.argsort(axes)
    )
