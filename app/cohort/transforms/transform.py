"""A transform around a model: its specs, and the calls of its stages."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from time import monotonic

import numpy as np

from cohort.batching import Outputs
from cohort.errors import CohortError, InferenceFailed, InvalidInput, LoadFailed, quoted
from cohort.processing import Watch, Workroom
from cohort.session import Signature
from cohort.tensors import BY_NAME, Array, Arrays, OpenSpecs, TensorSpec, check_inputs
from cohort.transforms.process import TransformProcess

LEARNING_SECONDS = 30.0
"""Time limit for calling `after` with zeros when the version loads."""


class Transform:
    """A transform whose stages run in another process. Implements `Around`.

    process: Calls the stages; closed with this object.
    signature: The model's inputs and outputs.
    workroom: The queue of calls; closed with this object.
    """

    def __init__(self, process: TransformProcess, signature: Signature, workroom: Workroom) -> None:
        facts = process.facts
        self._process = process
        self._signature = signature
        self.workroom = workroom
        self.prepares, self.finishes = facts.before, facts.after
        own = [*signature.inputs, *signature.optional]
        self.optional: Sequence[TensorSpec] = signature.optional
        if not self.prepares:
            self.inputs: Sequence[TensorSpec] = signature.inputs
        elif facts.inputs is None:
            self.inputs, self.optional = [], OpenSpecs(own)
        else:
            self.inputs, self.optional = _declared("inputs", facts.inputs), []
        self.outputs: Sequence[TensorSpec] = signature.outputs
        if self.finishes:
            learned = facts.outputs is None
            self.outputs = self._learn() if learned else _declared("outputs", facts.outputs or {})

    @property
    def description(self) -> Mapping[str, str]:
        """Return an empty mapping, because a transform does not describe single inputs."""
        return {}

    @property
    def count_tokens(self) -> None:
        """None: a transform's inputs are not text of a tokenizer."""

    @property
    def by_request(self) -> bool:
        """Return True, because a transform may mix rows."""
        return True

    def is_short(self, inputs: Arrays) -> bool:
        """Return False, because a call may take long."""
        del inputs
        return False

    def prepared_bytes(self, inputs: Arrays, watch: Watch) -> int:
        """Return 0, because the size of the result is unknown before the call."""
        del inputs, watch
        return 0

    def prepare(self, inputs: Arrays, watch: Watch) -> Arrays:
        """Call `before`."""
        given = self._process.call("before", inputs, watch)
        specs = [*self._signature.inputs]
        specs += [spec for spec in self._signature.optional if spec.name in given]
        try:
            arrays = {
                spec.name: _fitted(spec, given[spec.name]) for spec in specs if spec.name in given
            }
            check_inputs(specs, arrays | {name: given[name] for name in given.keys() - arrays})
        except InvalidInput as error:
            raise InferenceFailed(
                f"`before` of the model's transform returned invalid inputs: {error}"
            ) from error
        return arrays

    def finishes_at_once(self, outputs: Outputs) -> bool:
        """Return False, because `after` may take long."""
        del outputs
        return False

    def finish(self, outputs: Outputs, watch: Watch) -> Outputs:
        """Call `after`."""
        specs = self._signature.outputs
        named = {spec.name: one for spec, one in zip(specs, outputs, strict=True)}
        given = self._process.call("after", named, watch)
        wanted = [spec.name for spec in self.outputs]
        if set(wanted) != set(given):
            raise InferenceFailed(
                f"`after` of the model's transform returned {_names(given)}, not {_names(wanted)}: "
                "declare what it gives, as outputs of the class"
            )
        try:
            return [_fitted(spec, given[spec.name]) for spec in self.outputs]
        except InvalidInput as error:
            raise InferenceFailed(
                f"`after` of the model's transform returned invalid outputs: {error}"
            ) from error

    def example(self, inputs: Arrays | None) -> Arrays | None:
        """Return zeros for declared inputs; without a declaration, return the model's example."""
        if self._process.facts.inputs is None or not self.prepares:
            return inputs
        return {spec.name: _zeros(spec) for spec in self.inputs}

    def answer(self, inputs: Arrays | None, outputs: Outputs | None) -> None:
        """Return None, because `after` runs in another process."""

    def close(self) -> None:
        """End the process."""
        self.workroom.close()
        self._process.close()

    def _learn(self) -> Sequence[TensorSpec]:
        """Return the specs of the outputs of `after`, called with zeros. Raises LoadFailed."""
        named = {spec.name: _zeros(spec) for spec in self._signature.outputs}
        watch = Watch(monotonic() + LEARNING_SECONDS, LEARNING_SECONDS)
        try:
            given = self._process.call("after", named, watch, LEARNING_SECONDS)
        except CohortError as error:
            raise LoadFailed(
                "transform: after fails for outputs that are zeros, by which it is learned what it "
                f'gives: {error}; declare that: outputs = {{"label": ("BYTES", ["N"])}}'
            ) from error
        return [_learned(name, array) for name, array in given.items()]


def _names(names: Collection[str]) -> str:
    return ", ".join(map(quoted, names)) or "nothing"


def _declared(side: str, declared: Mapping[str, Sequence[object]]) -> list[TensorSpec]:
    specs = []
    for name, (datatype, shape) in declared.items():
        if datatype not in BY_NAME:
            raise LoadFailed(
                f"transform: {side} of {name}: {datatype!r} is not a datatype such as FP32"
            )
        sizes = tuple(one if isinstance(one, int | str) else None for one in shape)  # type: ignore[attr-defined]
        specs.append(TensorSpec(name, str(datatype), sizes))
    return specs


def _learned(name: str, array: Array) -> TensorSpec:
    """Return a spec with the datatype and rank of one result; all lengths are left open."""
    datatype = next((row.name for row in BY_NAME.values() if row.dtype == array.dtype), "BYTES")
    return TensorSpec(name, datatype, (None,) * array.ndim)


def _zeros(spec: TensorSpec) -> Array:
    shape = [size if isinstance(size, int) else 1 for size in spec.shape or ()]
    if spec.datatype == "BYTES":
        return np.full(shape, "", np.object_)
    return np.zeros(shape, spec.dtype)


def _fitted(spec: TensorSpec, array: Array) -> Array:
    """Convert an array to the datatype of `spec`; Python numbers are wider than most models accept.

    Raises InvalidInput if a value would change its kind, or is out of range.
    """
    if array.dtype == spec.dtype or spec.datatype == "BYTES":
        if spec.datatype == "BYTES" and array.dtype.kind not in "OV":
            raise InvalidInput(f"{quoted(spec.name)} is BYTES, got {array.dtype}")
        return array
    wanted, got = BY_NAME[spec.datatype].kind, array.dtype.kind
    if wanted == "float" and got in "iuf":
        return array.astype(spec.dtype)
    if wanted == "int" and got in "iu":
        cast = array.astype(spec.dtype)
        if (cast == array).all():
            return cast
        raise InvalidInput(f"{quoted(spec.name)} is {spec.datatype}, and a number is out of range")
    raise InvalidInput(f"{quoted(spec.name)} is {spec.datatype}, got {array.dtype}")
