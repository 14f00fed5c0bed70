"""The state tensors of a model, and their initial values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from cohort.batching import Outputs
from cohort.errors import LoadFailed, TooLarge, did_you_mean
from cohort.repository import StateConfig
from cohort.session import Signature
from cohort.tensors import BY_NAME, Arrays, TensorSpec


@dataclass(frozen=True, slots=True)
class StateTensor:
    """One input that is kept between requests.

    spec: The spec of the input.
    place: The position of the output with its next value.
    initial: The number that fills it at the start of a sequence.
    """

    spec: TensorSpec
    place: int
    initial: float


@dataclass(frozen=True, slots=True)
class StatePlan:
    """The state tensors of a model, and the inputs and outputs that clients see.

    tensors: The inputs that are kept between requests.
    inputs, outputs: The specs that clients see.
    places: The positions of those outputs among the model's outputs.
    """

    tensors: Sequence[StateTensor]
    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    places: Sequence[int]

    def begin(self, inputs: Arrays, most: int) -> Arrays:
        """Return the state before a first request with these inputs.

        most: Maximum bytes of a state tensor. Raises TooLarge.
        """
        state: Arrays = {}
        for tensor in self.tensors:
            spec = tensor.spec
            shape = self._shape(spec, inputs)
            if prod(shape) * spec.dtype.itemsize > most:
                raise TooLarge(
                    f"the state of this sequence needs {prod(shape) * spec.dtype.itemsize} bytes, "
                    f"but all sequences together may use {most}"
                )
            state[spec.name] = np.full(shape, tensor.initial, spec.dtype)
        return state

    def fits(self, state: Arrays, inputs: Arrays) -> str:
        """Return a sentence about a length in which state and inputs differ; "" if they fit."""
        for tensor in self.tensors:
            name, shape = tensor.spec.name, tensor.spec.shape or ()
            now, wanted = state[name].shape, self._shape(tensor.spec, inputs)
            for axis, size in enumerate(shape):
                if size is None or isinstance(size, int) or axis >= len(now):
                    continue
                if self._sent(size, inputs) is not None and now[axis] != wanted[axis]:
                    return f"{size} is {now[axis]} in it, and {wanted[axis]} in this request"
            if self._row_axis(shape, inputs) is not None and len(now) == len(wanted):
                axis = self._row_axis(shape, inputs) or 0
                if now[axis] != wanted[axis]:
                    return f"it has {now[axis]} rows, and this request has {wanted[axis]}"
        return ""

    def next_state(self, outputs: Outputs) -> Arrays:
        """Return the state after a request; copy views, whose base may hold other requests."""
        state: Arrays = {}
        for tensor in self.tensors:
            array = outputs[tensor.place]
            state[tensor.spec.name] = array if array.base is None else array.copy()
        return state

    def _shape(self, spec: TensorSpec, inputs: Arrays) -> tuple[int, ...]:
        """Return the initial shape of a state tensor.

        An open axis has the length of the input axis with the same name, or the number of rows.
        Any other open axis starts with length 0, because the state grows along it.
        """
        shape = spec.shape or ()
        rows_at = self._row_axis(shape, inputs)
        sizes: list[int] = []
        for axis, size in enumerate(shape):
            if isinstance(size, int):
                sizes.append(size)
            elif axis == rows_at:
                sizes.append(self._rows(inputs))
            else:
                sent = self._sent(size, inputs)
                sizes.append(0 if sent is None else sent)
        return tuple(sizes)

    def _row_axis(self, shape: Sequence[int | str | None], inputs: Arrays) -> int | None:
        """Return the first open axis; None if an open axis has the name of an input's axis."""
        free = [axis for axis, size in enumerate(shape) if not isinstance(size, int)]
        if not free or any(self._sent(shape[axis], inputs) is not None for axis in free):
            return None
        return free[0]

    def _sent(self, symbol: int | str | None, inputs: Arrays) -> int | None:
        """Return the length of the inputs' axis with this name; None if no input has it."""
        if not isinstance(symbol, str):
            return None
        for spec in self.inputs:
            if spec.name in inputs and spec.shape is not None and symbol in spec.shape:
                return int(inputs[spec.name].shape[spec.shape.index(symbol)])
        return None

    def _rows(self, inputs: Arrays) -> int:
        for spec in self.inputs:
            array = inputs.get(spec.name)
            if array is not None and array.ndim and spec.rows_vary:
                return len(array)
        return 1


def make_state_plan(
    state: StateConfig, initial: Mapping[str, float], signature: Signature
) -> StatePlan:
    """Find the tensors in a model that a config names as state.

    state: The output with the next value of each state input.
    initial: The initial numbers of state inputs; the default is 0.

    Raises LoadFailed if a tensor does not exist, or if input and output do not fit.
    """
    inputs = {spec.name: spec for spec in (*signature.inputs, *signature.optional)}
    places = {spec.name: place for place, spec in enumerate(signature.outputs)}
    tensors: list[StateTensor] = []
    for name, output in state.items():
        where = f"state.{name}"
        if name not in inputs:
            raise LoadFailed(f"{where}: the model has no such input{did_you_mean(name, inputs)}")
        if output not in places:
            raise LoadFailed(
                f"{where}: the model has no output {output}{did_you_mean(output, places)}"
            )
        spec, out = inputs[name], signature.outputs[places[output]]
        _check(where, spec, out)
        tensors.append(StateTensor(spec, places[output], initial.get(name, 0.0)))
    for name in initial:
        if name not in state:
            raise LoadFailed(f"sequences.initial.{name}: it is not a state input")
    hidden = {tensor.place for tensor in tensors}
    shown = [place for place in range(len(signature.outputs)) if place not in hidden]
    if not shown:
        raise LoadFailed("state: all outputs are state, so callers would get no output")
    left = [spec for spec in signature.inputs if spec.name not in state]
    return StatePlan(tensors, left, [signature.outputs[place] for place in shown], shown)


def _check(where: str, spec: TensorSpec, output: TensorSpec) -> None:
    datatype = BY_NAME.get(spec.datatype)
    if datatype is None or datatype.kind == "text" or spec.shape is None:
        raise LoadFailed(f"{where}: {spec.datatype} {spec.shape_text} cannot begin with numbers")
    both = f"input {spec.datatype} {spec.shape_text}, output {output.datatype} {output.shape_text}"
    if output.datatype != spec.datatype:
        raise LoadFailed(f"{where}: the output is not of the input's datatype: {both}")
    if output.shape is None:
        return
    pairs = zip(spec.shape, output.shape, strict=False)
    differ = any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs)
    if differ or len(spec.shape) != len(output.shape):
        raise LoadFailed(f"{where}: the output does not fit into the input: {both}")
