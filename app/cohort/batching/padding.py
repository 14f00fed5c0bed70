"""Requests of different lengths in one run: inputs are padded, outputs are trimmed.

Lengths fall into buckets that end at the multiples of `Padding.multiple`. Only requests of the same
bucket share a run. They are padded to the longest of them, not to the end of the bucket, so a run
of equally long requests has no padding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import lcm
from typing import NamedTuple

import numpy as np

from cohort.batching.policy import Key, Padding, count_rows, text_kib
from cohort.batching.stacking import FIRST_AXIS, Joined, Outputs, RowsDoNotFollow
from cohort.tensors import Array, Arrays, TensorSpec


class PaddedInput(NamedTuple):
    """An input that is padded along `axis` with `value`.

    Inputs with the same `symbol` have the same length along their padded axes.
    """

    axis: int
    value: float
    symbol: str


@dataclass(frozen=True, slots=True)
class PadPlan:
    """The padding of one model's requests.

    inputs: The padded inputs by name; empty if padding is off.
    multiples: The multiple that buckets of a symbol end at, by symbol.
    outputs: The axes that are trimmed and their symbols, by the output's position.
    reason: Why padding is off although the config asks for it; default "".
    """

    inputs: Mapping[str, PaddedInput] = field(default_factory=dict)
    multiples: Mapping[str, int] = field(default_factory=dict)
    outputs: Mapping[int, Sequence[tuple[int, str]]] = field(default_factory=dict)
    reason: str = ""

    def rows_and_key(self, inputs: Arrays) -> tuple[int, Key]:
        """See `Stacking`: padded axes count as rounded up to the end of their bucket."""
        rows = -1
        key: list[object] = []
        lengths: dict[str, int] = {}
        for name, array in inputs.items():
            shape = array.shape
            if not shape or (rows >= 0 and shape[0] != rows):
                return count_rows(inputs), None
            rows = shape[0]
            key += name, array.dtype
            if (padded := self.inputs.get(name)) is None:
                key.append(shape[1:])
                continue
            axis, _, symbol = padded
            if axis >= len(shape) or lengths.setdefault(symbol, shape[axis]) != shape[axis]:
                return count_rows(inputs), None
            bound = _round_up(shape[axis], self.multiples[symbol])
            key.append((*shape[1:axis], bound, *shape[axis + 1 :]))
        return (rows, tuple(key)) if key else (1, None)

    def rows_alone(self, inputs: Arrays) -> tuple[int, Key]:
        """See `Stacking`."""
        return FIRST_AXIS.rows_alone(inputs)

    def elements(self, inputs: Arrays) -> int:
        """Return the number of elements of `inputs`, as if padded to the ends of their buckets."""
        count = 0
        for name, array in inputs.items():
            size, padded = array.size, self.inputs.get(name)
            if size and padded is not None and padded.axis < array.ndim:
                length = array.shape[padded.axis]
                size = size // length * _round_up(length, self.multiples[padded.symbol])
            count += size + text_kib(array)
        return count

    def lengths(self, requests: Sequence[Arrays]) -> dict[str, list[int]]:
        """Return the lengths of the requests by symbol, for symbols whose lengths differ."""
        found = {
            symbol: [one[name].shape[axis] for one in requests]
            for name, (axis, _, symbol) in self.inputs.items()
        }
        return {symbol: each for symbol, each in found.items() if min(each) != max(each)}

    def join(self, requests: Sequence[Arrays]) -> Joined:
        """See `Stacking`: inputs of different lengths are padded to the longest of them."""
        lengths = self.lengths(requests)
        if not lengths:
            return FIRST_AXIS.join(requests)
        feeds: Arrays = {}
        elements = own = 0
        for name in requests[0]:
            arrays = [one[name] for one in requests]
            padded = self.inputs.get(name)
            if padded is None or padded.symbol not in lengths:
                feeds[name] = np.concatenate(arrays)
                continue
            feed = _pad(arrays, padded, max(lengths[padded.symbol]))
            feeds[name] = feed
            elements += feed.size
            own += sum([array.size for array in arrays])
        return Joined(feeds, 1 - own / elements if elements else 0.0, lengths)

    def fill(self, feeds: Arrays, rows: int) -> Arrays:
        """See `Stacking`."""
        return FIRST_AXIS.fill(feeds, rows)

    def split(self, outputs: Outputs, rows: Sequence[int], joined: Joined) -> list[Outputs]:
        """See `Stacking`: outputs are trimmed to the request's own lengths."""
        parts = FIRST_AXIS.split(outputs, rows, joined)
        if joined.lengths:
            self._trim(parts, joined.lengths)
        return parts

    def _trim(self, parts: Sequence[Outputs], lengths: Mapping[str, Sequence[int]]) -> None:
        """Trim each request's outputs to its own lengths, in place, as contiguous arrays.

        Raises RowsDoNotFollow if an output is not as long as the padded inputs.
        """
        for position, follows in self.outputs.items():
            for axis, symbol in follows:
                if symbol not in lengths:
                    continue
                bound = max(lengths[symbol])
                for part, length in zip(parts, lengths[symbol], strict=True):
                    output = part[position]
                    if output.ndim <= axis or output.shape[axis] != bound:
                        raise RowsDoNotFollow(
                            f"inputs padded to {symbol} = {bound}", position, output
                        )
                    kept = (slice(None),) * axis + (slice(length),)
                    part[position] = np.ascontiguousarray(output[kept])


def _round_up(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple


def _pad(arrays: Sequence[Array], padded: PaddedInput, bound: int) -> Array:
    first = arrays[0]
    axis = padded.axis
    shape = list(first.shape)
    shape[0] = sum([array.shape[0] for array in arrays])
    shape[axis] = bound
    # Strings are in object arrays; raw bytes are in void arrays.
    value = {np.object_: "", np.void: b""}.get(first.dtype.type, padded.value)
    feed: Array = np.full(shape, value, first.dtype)
    start = 0
    for array in arrays:
        end = start + array.shape[0]
        feed[(slice(start, end), *[slice(None)] * (axis - 1), slice(array.shape[axis]))] = array
        start = end
    return feed


def plan_padding(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], pad: Mapping[str, Padding]
) -> PadPlan:
    """Plan the padding of a model with these specs, according to its config's `pad`.

    An output is trimmed along an axis whose symbol is that of a padded input. A wrong guess would
    return padding to callers. So padding is off unless, for each axis of each output, it is known
    whether it follows a padded input. Every input with a padded symbol must also be padded.
    """
    try:
        padded = _padded_inputs(inputs, pad)
        return PadPlan(padded, _multiples(padded, pad), _following(inputs, outputs, padded))
    except _CannotPadError as error:
        return PadPlan(reason=str(error))


class _CannotPadError(Exception):
    pass


def _padded_inputs(
    inputs: Sequence[TensorSpec], pad: Mapping[str, Padding]
) -> dict[str, PaddedInput]:
    specs = {spec.name: spec for spec in inputs}
    padded = {}
    for name, padding in pad.items():
        if name not in specs:
            raise _CannotPadError(f"input {name!r} not found")
        shape = specs[name].shape
        if shape is None or not 0 < padding.axis < len(shape):
            raise _CannotPadError(f"input {name!r} has no axis {padding.axis} to pad")
        symbol = shape[padding.axis]
        if isinstance(symbol, int):
            raise _CannotPadError(
                f"axis {padding.axis} of input {name!r} has the fixed length {symbol}"
            )
        padded[name] = PaddedInput(padding.axis, padding.value, symbol or f"length of {name}")
    symbols = {one.symbol for one in padded.values()}
    for spec in inputs:
        for axis, symbol in enumerate(spec.shape or ()):
            if symbol in symbols and (spec.name not in padded or padded[spec.name].axis != axis):
                raise _CannotPadError(
                    f"axis {axis} of input {spec.name!r} has the length {symbol} too"
                )
    return padded


def _multiples(padded: Mapping[str, PaddedInput], pad: Mapping[str, Padding]) -> dict[str, int]:
    multiples: dict[str, int] = {}
    for name, one in padded.items():
        multiples[one.symbol] = lcm(multiples.get(one.symbol, 1), pad[name].multiple)
    return multiples


def _following(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], padded: Mapping[str, PaddedInput]
) -> dict[int, list[tuple[int, str]]]:
    if not padded:
        return {}
    symbols = {one.symbol for one in padded.values()}
    known = {symbol for spec in inputs for symbol in spec.shape or () if isinstance(symbol, str)}
    follows: dict[int, list[tuple[int, str]]] = {}
    for position, spec in enumerate(outputs):
        if spec.shape is None:
            raise _CannotPadError(f"the shape of output {spec.name!r} is unknown")
        for axis, symbol in list(enumerate(spec.shape))[1:]:
            if isinstance(symbol, int):
                continue
            if symbol is None or symbol not in known:
                raise _CannotPadError(
                    f"axis {axis} of output {spec.name!r} may or may not follow the padding"
                )
            if symbol in symbols:
                follows.setdefault(position, []).append((axis, symbol))
    return follows
