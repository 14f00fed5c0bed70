"""Requests with rows along other axes than 0, or with inputs that all requests share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np

from cohort.batching.policy import Key, count_elements
from cohort.batching.stacking import Joined, Outputs, RowsDoNotFollow, fill_along
from cohort.row_independence import OutputRows
from cohort.tensors import Array, Arrays, content_of, held_bytes

MAX_SHARED_BYTES = 1 << 16
"""Requests are grouped by the hashed values of a shared input, up to this size."""

DIGEST_BYTES = 64
"""Longer contents of shared inputs are compared by a digest, which queues hold for each request."""

SizePlace = tuple[str, int]
"""An input and one of its axes."""


@dataclass(frozen=True, slots=True)
class RowPlan:
    """The places of a model's rows, which are known not to influence each other.

    inputs: The axis of rows of each input. None if a run has it once, so that its values must be
        equal in all requests of the run.
    outputs: The places of the rows of each output, in the model's order; None if it is the same for
        all requests.
    equal_sizes: The axes that must be equally long in a request that shares a run; default: empty.
    only: The keys of the requests for which that is known; empty: all requests.
    """

    inputs: Mapping[str, int | None]
    outputs: Sequence[OutputRows | None]
    equal_sizes: Sequence[Sequence[SizePlace]] = field(default=())
    only: frozenset[Key] = frozenset()

    def rows_and_key(self, inputs: Arrays) -> tuple[int, Key]:
        """See `Stacking`. Equal values of shared inputs are part of the key."""
        rows = -1
        key: list[object] = []
        for name, axis in self.inputs.items():
            array = inputs[name]
            shape = array.shape
            if axis is None:
                if held_bytes(array) > MAX_SHARED_BYTES:
                    return self.rows_alone(inputs)
                key += name, array.dtype, shape, _content(array)
                continue
            if axis >= len(shape) or (rows >= 0 and shape[axis] != rows):
                return self.rows_alone(inputs)
            rows = shape[axis]
            key += name, array.dtype, shape[:axis], shape[axis + 1 :]
        for places in self.equal_sizes:
            if len({inputs[name].shape[axis] for name, axis in places}) > 1:
                return rows, None
        if rows < 0:
            return 1, None
        found = tuple(key)
        return rows, None if self.only and found not in self.only else found

    def rows_alone(self, inputs: Arrays) -> tuple[int, Key]:
        """See `Stacking`."""
        axes = [(self.inputs.get(name), array.shape) for name, array in inputs.items()]
        rows = [shape[axis] for axis, shape in axes if axis is not None and axis < len(shape)]
        return max(rows, default=1), None

    def elements(self, inputs: Arrays) -> int:
        """See `Stacking`."""
        return count_elements(inputs)

    def join(self, requests: Sequence[Arrays]) -> Joined:
        """See `Stacking`."""
        feeds: Arrays = {}
        for name, first in requests[0].items():
            axis = self.inputs[name]
            if axis is None:
                feeds[name] = first
            else:
                feeds[name] = np.concatenate([one[name] for one in requests], axis)
        return Joined(feeds)

    def fill(self, feeds: Arrays, rows: int) -> Arrays:
        """See `Stacking`."""
        return {
            name: array if (axis := self.inputs[name]) is None else fill_along(array, axis, rows)
            for name, array in feeds.items()
        }

    def split(self, outputs: Outputs, rows: Sequence[int], joined: Joined) -> list[Outputs]:
        """See `Stacking`. The parts are contiguous; outputs that all have in common are shared."""
        total = sum(rows)
        parts: list[Outputs] = [[] for _ in rows]
        for position, (place, output) in enumerate(zip(self.outputs, outputs, strict=True)):
            if place is None:
                for part in parts:
                    part.append(output)
                continue
            each = _rows_each(output, place, total)
            if each is None:
                raise RowsDoNotFollow(f"{total} rows", position, output)
            before, start = (slice(None),) * place.axis, 0
            for part, count in zip(parts, rows, strict=True):
                end = start + count * each
                part.append(np.ascontiguousarray(output[(*before, slice(start, end))]))
                start = end
        return parts


def _content(array: Array) -> bytes:
    """Return the content of an array, or its digest, for comparison."""
    content = content_of(array)
    return content if len(content) <= DIGEST_BYTES else blake2b(content, digest_size=32).digest()


def _rows_each(output: Array, place: OutputRows, rows: int) -> int | None:
    """Return the entries of an output for each of `rows`; None if they cannot be divided."""
    if output.ndim <= place.axis:
        return None
    extent = output.shape[place.axis]
    each = extent // rows if place.each is None and rows else place.each or 0
    return each if each * rows == extent else None
