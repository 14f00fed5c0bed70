"""One inference, from a request in plain values to a response in plain values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import NamedTuple, cast

import numpy as np

from cohort.codec import (
    LARGE_BYTES,
    are_large,
    decode_tensor,
    from_bytes,
    to_bytes,
    unpack_values,
)
from cohort.codec.binary import BytesLike, from_texts
from cohort.codec.json_tensors import checked_shape, out_of_range, wrong_count
from cohort.codec.labels import Labeller, chosen
from cohort.errors import InvalidInput, quoted
from cohort.open_inference.classification import classify, has_rows
from cohort.open_inference.parameters import NO_PARAMETERS, Parameters, write_shared
from cohort.open_inference.regions import NO_REGIONS, Region, Regions, SharedPart
from cohort.open_inference.request import InferRequest, InputTensor, RequestedOutput
from cohort.serving import Lease, Outputs
from cohort.tensors import ANY, BY_NAME, Array, Arrays, TensorSpec, check_names


@dataclass(frozen=True, slots=True)
class OutputTensor:
    """An output in a response.

    name: Its name.
    datatype: The datatype's name in the protocol; BYTES for classes.
    array: Its values.
    binary: True to send it as bytes, if the protocol has more than one form.
    shared: The parameters of its location in shared memory, sent instead of its values; default
        None: the values are sent.
    """

    name: str
    datatype: str
    array: Array
    binary: bool
    shared: Mapping[str, str | int] | None = None


@dataclass(frozen=True, slots=True)
class InferResponse:
    """A response in plain values.

    model, version: The names of the version that answered.
    id: The request's id; empty if it did not have one.
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
    regions: The callers' shared memory regions; default: shared memory is off.

    Raises InvalidInput for tensors in shared memory if it is off, and TooLarge for too many bytes.
    """

    __slots__ = ("_regions", "_wanted", "_written", "request")

    def __init__(self, request: InferRequest, regions: Regions = NO_REGIONS) -> None:
        self.request = request
        self._wanted: Sequence[_Wanted] = ()
        self._regions = regions
        self._written: Mapping[SharedPart, Region] = {}
        if request.shared:
            regions.admit(request.shared[0].place, request.beside)

    @property
    def beside(self) -> int:
        """Return the number of bytes that `decode` reads from shared memory."""
        return self.request.beside

    def decode(self, lease: Lease) -> Arrays:
        """Make the version's input arrays. Raises InvalidInput for inputs that do not fit."""
        request = self.request
        specs = lease.inputs_for(request.inputs)
        self._wanted = _select(request, lease)
        check_names(specs, request.inputs)
        inputs = request.inputs if not request.shared else self._read_shared(lease)
        return {spec.name: decode_input(spec, inputs[spec.name]) for spec in specs}

    def take_parameters(self, names: Collection[str]) -> Parameters:
        """Remove the inputs with these names, and return their values.

        An input of one element is a value, and one of several elements is a list. Triton's backends
        of language models read parameters from such inputs. Raises InvalidInput.
        """
        inputs = self.request.inputs
        if not inputs.keys() & names:
            return NO_PARAMETERS
        kept = {name: one for name, one in inputs.items() if name not in names}
        self.request = replace(self.request, inputs=kept)
        return {name: _value(one) for name, one in inputs.items() if name in names}

    def _read_shared(self, lease: Lease) -> Mapping[str, InputTensor]:
        """Read the inputs that are in shared memory, and find the regions of outputs."""
        caller, find = lease.context.caller, self._regions.find
        owner = "" if caller is None else caller.name
        self._written = {
            part: find(owner, part)
            for one in self._wanted
            if (part := one.output.shared) is not None
        }
        return {
            name: one
            if one.shared is None
            else replace(one, raw=find(owner, one.shared).read(one.shared))
            for name, one in self.request.inputs.items()
        }

    def decode_work(self, lease: Lease) -> int:
        """Return the cost of `decode`, as a size of JSON that takes the same time."""
        del lease
        return sum([one.work for one in self.request.inputs.values()])

    def is_large(self, outputs: Outputs, copied: Callable[[Array], bool] = lambda _: True) -> bool:
        """Return True if `respond` and writing its result take long. Call `decode` first.

        copied: Returns True if writing an output copies it; default: always True.
        """
        return are_large(
            outputs if self._written else [one for one in outputs if copied(one)]
        ) or any(
            (one.labeller is not None or one.output.classes)
            and self._ranking_work(one, outputs) > LARGE_BYTES
            for one in self._wanted
        )

    def _ranking_work(self, one: _Wanted, outputs: Outputs) -> int:
        array = outputs[one.position]
        if one.labeller is not None:
            return one.labeller.work(array, self.request.top)
        return _class_work(array, one.output.classes)

    def respond(self, lease: Lease, outputs: Outputs) -> InferResponse:
        """Select the requested ones of `outputs`, which are in the model's order.

        Raises InvalidInput if classes are requested of an output that cannot be ranked.
        """
        check = partial(lease.check_time, self.request.timeout)
        sent = [
            _output(lease, outputs[one.position], one, self.request.top, check)
            for one in self._wanted
        ]
        if self._written:
            sent = [
                tensor if (part := one.output.shared) is None else self._write(part, tensor, check)
                for one, tensor in zip(self._wanted, sent, strict=True)
            ]
        return InferResponse(lease.model, lease.version, self.request.id, lease.variant, sent)

    def _write(
        self, part: SharedPart, tensor: OutputTensor, check: Callable[[], None]
    ) -> OutputTensor:
        """Write an output to shared memory. Raises InvalidInput if it does not fit."""
        data = to_bytes(tensor.array, check)
        size = memoryview(data).nbytes
        if size > part.size:
            raise InvalidInput(
                f"output {quoted(tensor.name)} needs {size} bytes, but the request assigns it "
                f"{part.size} bytes of shared memory region {quoted(part.region)}"
            )
        check()
        self._written[part].write(part, data)
        return replace(tensor, shared=write_shared(part, size))


class _Wanted(NamedTuple):
    """A requested output at a position, or its labels if `labeller` is set."""

    position: int
    output: RequestedOutput
    labeller: Labeller | None = None


def _select(request: InferRequest, lease: Lease) -> Sequence[_Wanted]:
    """Return the named outputs and labels, or all outputs if the request names none.

    Labels are included if they are named, or requested by `top`. If the request names no outputs,
    they are also included if the config requests them.
    """
    labellers, top = lease.served.labellers, request.top
    if (outputs := request.outputs) is None:
        wanted = [
            _Wanted(position, RequestedOutput(lease.outputs[position].name, request.binary))
            for position in lease.select(None)
        ]
        labelled = chosen(labellers, [one.position for one in wanted], top)
        return [
            *wanted,
            *(
                _Wanted(at, RequestedOutput(one.output, request.binary), one)
                for at, one in labelled
            ),
        ]
    named = {one.output: _Wanted(at, outputs[0], one)
             for at, one in enumerate(labellers) if one is not None}  # fmt: skip
    if (parts := lease.served.parts) and len(outputs) <= 2 * len(lease.outputs):
        outputs = [
            replace(one, name=name) for one in outputs for name in parts.get(one.name, (one.name,))
        ]
    own = [one for one in outputs if one.name not in named]
    places = dict(
        zip([one.name for one in own], lease.select([one.name for one in own]), strict=True)
    )
    wanted = [
        named[one.name]._replace(output=one)
        if one.name in named
        else _Wanted(places[one.name], one)
        for one in outputs
    ]
    if not top:
        return wanted
    given = {one.position for one in wanted if one.labeller is not None}
    asked = {one.position: one.output for one in wanted if one.labeller is None}
    more = [] if given and not asked else chosen(labellers, [*asked], top)
    return [
        *wanted,
        *(
            _Wanted(at, RequestedOutput(one.output, asked[at].binary), one)
            for at, one in more
            if at not in given
        ),
    ]


def _class_work(array: Array, classes: int) -> int:
    rows = array.shape[0] if array.ndim else 1
    return array.size * 5 + rows * (1000 + 100 * min(classes, array.size // max(rows, 1)))


def _output(
    lease: Lease, array: Array, one: _Wanted, top: int, check: Callable[[], None]
) -> OutputTensor:
    spec, wanted = lease.outputs[one.position], one.output
    if one.labeller is not None:
        names = one.labeller.names(array, top, check)
        return OutputTensor(wanted.name, "BYTES", names, wanted.binary)
    if wanted.classes:
        by_row = has_rows([one.shape for one in lease.inputs], [one.shape for one in lease.outputs])
        labels = spec.labels or lease.labels
        best = classify(spec, array, wanted.classes, labels, by_row=by_row, check=check)
        return OutputTensor(spec.name, "BYTES", best, wanted.binary)
    return OutputTensor(spec.name, spec.datatype, array, wanted.binary)


def _value(sent: InputTensor) -> object:
    if not 0 < prod(sent.shape) <= MAX_VALUES:
        raise InvalidInput(f"input {quoted(sent.name)} must have 1 to {MAX_VALUES} elements")
    spec = TensorSpec(sent.name, sent.datatype, (None,) * len(sent.shape))
    values: list[object] = decode_input(spec, sent).ravel().tolist()
    return values[0] if len(values) == 1 else values


MAX_VALUES = 64
"""Maximum elements of an input that is a parameter."""


def decode_input(spec: TensorSpec, sent: InputTensor) -> Array:
    """Make the array that `spec` requires from an input, for every form of its elements.

    Datatypes are not converted: they must match the model's. Raises InvalidInput.
    """
    if spec.datatype == ANY and sent.datatype in BY_NAME:
        spec = replace(spec, datatype=sent.datatype)
    spec.dtype  # noqa: B018 - raises for datatypes that cannot be sent
    if sent.datatype != spec.datatype:
        raise InvalidInput(
            f"input {quoted(spec.name)} is {spec.datatype}, "
            f"but the request declares datatype {quoted(sent.datatype)}"
        )
    if sent.raw is not None:
        array = from_bytes(sent.raw, sent.datatype, sent.shape, name=sent.name, files=spec.files)
    elif sent.packed is not None:
        array = _from_packed(sent.name, sent.datatype, sent.shape, sent.packed)
    elif sent.values is not None:
        array = _from_values(sent, sent.values, files=spec.files)
    else:
        array = decode_tensor(
            sent.name, sent.datatype, sent.shape, sent.data, spec.missing, files=spec.files
        )
    if not array.size:
        _check_empty(spec, array.shape)
    return array if array.ndim != 1 else spec.fit(array)


MAX_EMPTY_ROWS = 1024
MAX_EMPTY_COLUMNS = 1 << 20


def _check_empty(spec: TensorSpec, shape: Sequence[int]) -> None:
    """Raise InvalidInput for an array without elements whose outputs may be large.

    Such an array needs no bytes, even if its axes are long. Axes that the model has fixed are not
    limited.
    """
    declared = spec.shape or (None,) * len(shape)
    lengths = [1 if isinstance(fixed, int) else size
               for size, fixed in zip(shape, declared, strict=False)]  # fmt: skip
    zero = shape.index(0)
    if prod(lengths[:zero]) > MAX_EMPTY_ROWS or prod(lengths[zero + 1 :]) > MAX_EMPTY_COLUMNS:
        raise InvalidInput(
            f"input {quoted(spec.name)} of shape {list(shape)} has no elements. The product of the "
            f"lengths before its first 0 must be at most {MAX_EMPTY_ROWS}, of those after it at "
            f"most {MAX_EMPTY_COLUMNS}"
        )


WIDENED = frozenset({"INT8", "INT16", "UINT8", "UINT16"})
"""Datatypes that gRPC sends in wider fields, so that a value may be out of range."""


def _from_values(sent: InputTensor, values: Sequence[object], *, files: bool) -> Array:
    name, datatype, shape = sent.name, sent.datatype, sent.shape
    wanted = checked_shape(name, datatype, shape)
    if datatype in WIDENED or len(values) != prod(wanted):
        return decode_tensor(name, datatype, shape, list(values))  # raises the precise error
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
