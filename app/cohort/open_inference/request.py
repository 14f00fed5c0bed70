"""An inference request in plain values, for REST and gRPC, and its validation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from cohort.codec import ELEMENT_BYTES, LARGE_BYTES, MAX_ID, too_long_id
from cohort.codec.binary import BytesLike
from cohort.codec.json_tensors import MAX_RANK
from cohort.codec.labels import read_top
from cohort.errors import InvalidInput, quoted
from cohort.open_inference.parameters import (
    NO_PARAMETERS,
    Parameters,
    boolean,
    check_no_shared_memory,
    read_shared,
    read_timeout,
    whole_number,
)
from cohort.open_inference.regions import SharedPart
from cohort.tensors import BY_NAME

COPIED = 16
"""Number of bytes that are copied in the time of parsing one byte of JSON."""


@dataclass(frozen=True, slots=True)
class InputTensor:
    """An input of a request; its elements are in `raw`, `packed`, `values`, `data` or `shared`.

    name, datatype, shape, parameters: Values from the request, not checked against the model.
    raw: Bytes in the format of the binary tensor data extension; default None.
    packed: Bytes of the datatype's packed protobuf field, never for BYTES; default None.
    values: A flat sequence of the datatype's protobuf type, bytes for BYTES; default None.
    data: A JSON list, flat or nested like the shape; default None.
    shared: The location in shared memory, in the format of `raw`; default None.
    """

    name: str
    datatype: str
    shape: Sequence[int]
    parameters: Parameters
    raw: BytesLike | None = None
    values: Sequence[object] | None = None
    data: object = None
    packed: BytesLike | None = None
    shared: SharedPart | None = None

    @property
    def work(self) -> int:
        """Return the cost of decoding, as a size of JSON that takes the same time; without `data`.

        Raw numbers cost nothing: their bytes become the array.
        """
        shared = 0 if self.shared is None else self.shared.size
        if self.raw is not None or shared:
            size = shared if self.raw is None else len(self.raw)
            row = BY_NAME.get(self.datatype)
            if row is None or not (row.packed or row.kind == "text"):
                return 0 if self.raw is not None else size // COPIED
            if row.packed:
                return size * 8 // row.bits
            return size + ELEMENT_BYTES * _elements(self.shape, size // 4)
        if self.packed is not None:
            return len(self.packed)
        if self.values is None:
            return 0
        elements = len(self.values) * ELEMENT_BYTES
        if self.datatype != "BYTES" or elements > LARGE_BYTES:
            return elements
        return elements + sum(map(len, cast("Sequence[bytes]", self.values)))


def _elements(shape: Sequence[object], most: int) -> int:
    """Return the number of elements of a shape, at most `most`; 0 if the shape is invalid."""
    count = 1
    if len(shape) > MAX_RANK:
        return 0
    for size in shape:
        if not isinstance(size, int) or size < 0:
            return 0
        count *= size
    return min(count, most)


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """A requested output.

    name: Its name.
    binary: True to send it as bytes, if the protocol has more than one form; default False.
    classes: Number of best classes to send instead of the values; default 0: the values.
    shared: The location in shared memory to write it to; default None: it is sent.
    """

    name: str
    binary: bool = False
    classes: int = 0
    shared: SharedPart | None = None


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A valid request, not yet checked against the model.

    inputs: The inputs by name, in the request's order.
    outputs: The requested outputs; None: all of them.
    id: The caller's id; empty if absent.
    timeout: The caller's limit in seconds; None if absent.
    binary: True to send outputs as bytes if `outputs` is None.
    parameters: The request's parameters.
    top: Number of labels requested for each row; default 0: the model's config decides.
    shared: The locations of tensors in shared memory; default: empty.
    beside: The bytes of inputs in shared memory; default 0.
    """

    inputs: Mapping[str, InputTensor]
    outputs: Sequence[RequestedOutput] | None
    id: str
    timeout: float | None
    binary: bool
    parameters: Parameters
    top: int = 0
    shared: Sequence[SharedPart] = ()
    beside: int = 0


def make_request(
    inputs: Sequence[InputTensor],
    outputs: Iterable[tuple[str, Parameters]],
    *,
    id: str = "",  # noqa: A002 - the protocol's word
    parameters: Parameters = NO_PARAMETERS,
) -> InferRequest:
    """Make a request from its parts.

    inputs: The inputs from the request.
    outputs: The names of the requested outputs, each with its parameters.
    id: The caller's id; default "": absent.
    parameters: The request's parameters; default: empty.

    Raises InvalidInput, whose message names the place of the problem, such as `inputs[1].name`. The
    message is the same over REST and gRPC.
    """
    if len(id) > MAX_ID:
        raise too_long_id()
    check_no_shared_memory("parameters", parameters)
    binary = boolean("parameters.binary_data_output", parameters.get("binary_data_output"))
    timeout = read_timeout(parameters)
    by_name: dict[str, InputTensor] = {}
    shared: list[SharedPart] = []
    for position, sent in enumerate(inputs):
        tensor = sent
        if sent.parameters:
            part = read_shared(f"inputs[{position}].parameters", sent.parameters)
            if part is not None:
                tensor = _in_shared_memory(sent, part, f"inputs[{position}]")
                shared.append(part)
        if tensor.name in by_name:
            raise _repeated("inputs", position, tensor.name)
        by_name[tensor.name] = tensor
    beside = sum([one.size for one in shared])
    requested = _requested(outputs, binary=binary)
    top = parameters.get("top")
    labels = 0 if top is None else read_top("parameters.top", top)
    shared += [one.shared for one in requested if one.shared is not None]
    return InferRequest(
        by_name, requested or None, id, timeout, binary, parameters, labels, shared, beside
    )


def _in_shared_memory(sent: InputTensor, part: SharedPart, place: str) -> InputTensor:
    if sent.raw or sent.packed or sent.values or sent.data is not None:
        raise InvalidInput(f"{place} has both elements and parameters.shared_memory_region")
    return replace(sent, raw=None, packed=None, values=None, shared=part)


def _requested(
    outputs: Iterable[tuple[str, Parameters]], *, binary: bool
) -> Sequence[RequestedOutput]:
    by_name: dict[str, RequestedOutput] = {}
    for position, (name, parameters) in enumerate(outputs):
        if name in by_name:
            raise _repeated("outputs", position, name)
        if not parameters:
            by_name[name] = RequestedOutput(name, binary)
            continue
        place = f"outputs[{position}].parameters"
        by_name[name] = RequestedOutput(
            name,
            boolean(f"{place}.binary_data", parameters.get("binary_data"), default=binary),
            whole_number(f"{place}.classification", parameters.get("classification")),
            read_shared(place, parameters),
        )
    return list(by_name.values())


def _repeated(part: str, position: int, name: str) -> InvalidInput:
    return InvalidInput(f"{part}[{position}].name repeats {quoted(name)}")
