"""One inference, from a request in plain values to a response in plain values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import cast

import numpy as np

from cohort.codec import LARGE_BYTES, are_large, decode_tensor, from_bytes, unpack_values
from cohort.codec.binary import BytesLike, from_texts
from cohort.codec.json_tensors import checked_shape, out_of_range, wrong_count
from cohort.errors import InvalidInput, quoted
from cohort.open_inference.classification import classify, has_rows
from cohort.open_inference.request import InferRequest, InputTensor, RequestedOutput
from cohort.serving import Lease, Outputs
from cohort.tensors import BY_NAME, Array, Arrays, TensorSpec, check_names


@dataclass(frozen=True, slots=True)
class OutputTensor:
    """An output as it is sent.

    name: Its name.
    datatype: The datatype's name in the protocol; BYTES for classes.
    array: Its values.
    binary: Whether it is sent as bytes, where the protocol has more than one form.
    """

    name: str
    datatype: str
    array: Array
    binary: bool


@dataclass(frozen=True, slots=True)
class InferResponse:
    """A response.

    model, version: The names of the version that answered.
    id: The request's id; empty where it had none.
    variant: The rollout's variant that answered; empty without a rollout.
    outputs: The requested outputs, in the order of the request.
    """

    model: str
    version: str
    id: str
    variant: str
    outputs: Sequence[OutputTensor]


class Inference:
    """One inference: `decode` the request first, then `respond`, both with the same lease.

    request: The request in plain values.
    """

    __slots__ = ("_wanted", "request")

    def __init__(self, request: InferRequest) -> None:
        self.request = request
        self._wanted: Sequence[tuple[int, RequestedOutput]] = ()

    def decode(self, lease: Lease) -> Arrays:
        """Make arrays as the version takes them. Raises InvalidInput for what does not fit it."""
        request = self.request
        specs = lease.inputs_for(request.inputs)
        self._wanted = _select(request, lease)
        check_names(specs, request.inputs)
        return {spec.name: decode_input(spec, request.inputs[spec.name]) for spec in specs}

    def decode_work(self, lease: Lease) -> int:
        """How long `decode` takes, as the size of JSON that takes as long."""
        del lease
        return sum([one.work for one in self.request.inputs.values()])

    def is_large(self, outputs: Outputs, copied: Callable[[Array], bool] = lambda _: True) -> bool:
        """Whether `respond`, and writing what it gives, take long; `decode` was called.

        copied: Whether writing an output copies it; default: that of each does.
        """
        return are_large([one for one in outputs if copied(one)]) or any(
            wanted.classes and _class_work(outputs[position], wanted.classes) > LARGE_BYTES
            for position, wanted in self._wanted
        )

    def respond(self, lease: Lease, outputs: Outputs) -> InferResponse:
        """Select what was requested of `outputs`, which are in the model's order.

        Raises InvalidInput for classes of an output that has none.
        """
        check = partial(lease.check_time, self.request.timeout)
        return InferResponse(
            lease.model,
            lease.version,
            self.request.id,
            lease.variant,
            [
                _output(lease, position, outputs[position], wanted, check)
                for position, wanted in self._wanted
            ],
        )


def _select(request: InferRequest, lease: Lease) -> Sequence[tuple[int, RequestedOutput]]:
    outputs = request.outputs
    if outputs is not None:
        return list(zip(lease.select([one.name for one in outputs]), outputs, strict=True))
    return [
        (position, RequestedOutput(lease.outputs[position].name, request.binary))
        for position in lease.select(None)
    ]


def _class_work(array: Array, classes: int) -> int:
    rows = array.shape[0] if array.ndim else 1
    return array.size * 5 + rows * (1000 + 100 * min(classes, array.size // max(rows, 1)))


def _output(
    lease: Lease,
    position: int,
    array: Array,
    wanted: RequestedOutput,
    check: Callable[[], None],
) -> OutputTensor:
    spec = lease.outputs[position]
    if wanted.classes:
        by_row = has_rows([one.shape for one in lease.inputs], [one.shape for one in lease.outputs])
        labels = spec.labels or lease.labels
        best = classify(spec, array, wanted.classes, labels, by_row=by_row, check=check)
        return OutputTensor(spec.name, "BYTES", best, wanted.binary)
    return OutputTensor(spec.name, spec.datatype, array, wanted.binary)


def decode_input(spec: TensorSpec, sent: InputTensor) -> Array:
    """Make the array that `spec` takes of an input, in whichever form its elements were sent.

    Nothing is converted: the datatype is the model's own. Raises InvalidInput.
    """
    spec.dtype  # noqa: B018 - raises for what cannot be sent
    if sent.datatype != spec.datatype:
        raise InvalidInput(
            f"input {quoted(spec.name)} is {spec.datatype}, "
            f"but the request says datatype {quoted(sent.datatype)}"
        )
    if sent.raw is not None:
        array = from_bytes(sent.raw, sent.datatype, sent.shape, name=sent.name, files=spec.files)
    elif sent.packed is not None:
        array = _from_packed(sent.name, sent.datatype, sent.shape, sent.packed)
    elif sent.values is not None:
        array = _from_values(sent, sent.values, files=spec.files)
    else:
        shape, files = sent.shape, spec.files
        array = decode_tensor(sent.name, sent.datatype, shape, sent.data, files=files)
    if not array.size:
        _check_empty(spec, array.shape)
    return array


MOST_EMPTY_ROWS = 1024
MOST_EMPTY_COLUMNS = 1 << 20


def _check_empty(spec: TensorSpec, shape: Sequence[int]) -> None:
    """Raise InvalidInput for an array without elements that the model may give many outputs for.

    It weighs nothing, however long its axes; those that the model has fixed do not count.
    """
    declared = spec.shape or (None,) * len(shape)
    lengths = [1 if isinstance(fixed, int) else size
               for size, fixed in zip(shape, declared, strict=False)]  # fmt: skip
    zero = shape.index(0)
    if prod(lengths[:zero]) > MOST_EMPTY_ROWS or prod(lengths[zero + 1 :]) > MOST_EMPTY_COLUMNS:
        raise InvalidInput(
            f"input {quoted(spec.name)} of shape {list(shape)} has no elements: the lengths before "
            f"its first 0 may multiply to {MOST_EMPTY_ROWS}, those after it to {MOST_EMPTY_COLUMNS}"
        )


WIDENED = frozenset({"INT8", "INT16", "UINT8", "UINT16"})
"""Sent in wider fields over gRPC, so that a value may be out of range."""


def _from_values(sent: InputTensor, values: Sequence[object], *, files: bool) -> Array:
    name, datatype, shape = sent.name, sent.datatype, sent.shape
    wanted = checked_shape(name, datatype, shape)
    if datatype in WIDENED or len(values) != prod(wanted):
        return decode_tensor(name, datatype, shape, list(values))  # which says what is wrong
    if datatype != "BYTES":
        return np.array(values, BY_NAME[datatype].dtype).reshape(wanted)
    return from_texts(cast("Sequence[bytes]", values), name, files=files).reshape(wanted)


def _from_packed(name: str, datatype: str, shape: Sequence[int], packed: BytesLike) -> Array:
    wanted = checked_shape(name, datatype, shape)
    wide = unpack_values(packed, datatype)
    if wide.size != prod(wanted):
        raise wrong_count(name, wanted, wide.size)
    if datatype not in WIDENED:
        return wide.reshape(wanted)
    dtype = BY_NAME[datatype].dtype
    array = wide.astype(dtype)
    if (wrong := array != wide).any():
        index = int(wrong.argmax())
        raise out_of_range(name, datatype, wide[index].item(), index, wanted)
    return array.reshape(wanted)
