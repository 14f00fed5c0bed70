"""Joins the inputs of several requests into one run, and splits its outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from cohort.batching.policy import Key, count_elements, rows_and_key, rows_and_single_key
from cohort.tensors import Array, Arrays

Outputs = list[Array]
"""The outputs of a run, in the model's order."""

RunFeeds = Callable[[Arrays], Outputs]
"""One run of a model: its inputs to its outputs. Raises a CohortError."""


class RowsDoNotFollow(Exception):
    """An output does not have the rows of its inputs, so it cannot be split by request.

    inputs: A description of the inputs.
    position: The place of the output.
    shape: Its shape, as text.
    """

    def __init__(self, inputs: str, position: int, output: object) -> None:
        self.inputs, self.position = inputs, position
        # The outputs of a model may also be sequences and maps, which do not have a shape.
        self.shape = str(list(output.shape)) if isinstance(output, np.ndarray) else "unknown"
        super().__init__(f"{inputs} gave output {position} of shape {self.shape}")


class Joined(NamedTuple):
    """The inputs of a run, joined from those of several requests.

    feeds: The arrays by name.
    padding: The share of padding among the elements of the padded inputs, 0 to 1; default 0.
    lengths: The lengths of the requests by symbol, if they differed and were padded; default:
        empty.
    """

    feeds: Arrays
    padding: float = 0.0
    lengths: Mapping[str, Sequence[int]] = {}


class Stacking(Protocol):
    """Decides which requests of a model may share a run, and joins and splits them."""

    def rows_and_key(self, inputs: Arrays) -> tuple[int, Key]:
        """Return the rows of a request, and the key of the requests it may share a run with."""

    def rows_alone(self, inputs: Arrays) -> tuple[int, Key]:
        """Return the rows of a request that runs alone, and no key."""

    def elements(self, inputs: Arrays) -> int:
        """Return the number of elements of a request, as a measure of its work."""

    def join(self, requests: Sequence[Arrays]) -> Joined:
        """Join the inputs of two requests or more, all of one key."""

    def fill(self, feeds: Arrays, rows: int) -> Arrays:
        """Return the inputs of a run with its last row repeated up to `rows` rows."""

    def split(self, outputs: Outputs, rows: Sequence[int], joined: Joined) -> list[Outputs]:
        """Split the outputs of joined requests with these numbers of rows.

        Raises RowsDoNotFollow if the rows of an output are not those of the inputs.
        """


class FirstAxis:
    """Rows are along axis 0 of every input and output."""

    __slots__ = ()

    def rows_and_key(self, inputs: Arrays) -> tuple[int, Key]:
        """See `Stacking`."""
        return rows_and_key(inputs)

    def rows_alone(self, inputs: Arrays) -> tuple[int, Key]:
        """See `Stacking`."""
        return rows_and_single_key(inputs)

    def elements(self, inputs: Arrays) -> int:
        """See `Stacking`."""
        return count_elements(inputs)

    def join(self, requests: Sequence[Arrays]) -> Joined:
        """See `Stacking`."""
        return Joined(
            {name: np.concatenate([one[name] for one in requests]) for name in requests[0]}
        )

    def fill(self, feeds: Arrays, rows: int) -> Arrays:
        """See `Stacking`."""
        return {name: fill_along(array, 0, rows) for name, array in feeds.items()}

    def split(self, outputs: Outputs, rows: Sequence[int], joined: Joined) -> list[Outputs]:
        """See `Stacking`; the parts are views."""
        total = sum(rows)
        for position, output in enumerate(outputs):
            if not rows_follow(output, total):
                raise RowsDoNotFollow(f"{total} rows", position, output)
        parts = []
        start = 0
        for count in rows:
            end = start + count
            parts.append([output[start:end] for output in outputs])
            start = end
        return parts


FIRST_AXIS = FirstAxis()


def fill_along(array: Array, axis: int, length: int) -> Array:
    """Return an array with its last entry along an axis repeated up to `length`."""
    return array.take(range(length), axis, mode="clip")


def rows_follow(output: object, rows: int) -> bool:
    """Return True if an output has as many rows as its run."""
    # The outputs of a model may also be sequences and maps, which the annotation omits.
    return isinstance(output, np.ndarray) and output.ndim > 0 and output.shape[0] == rows
