"""An inference request in plain values, whatever carried it, and what makes it a valid one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from app.codec.binary import BytesLike
from app.errors import InvalidInput, quoted
from app.open_inference.parameters import (
    NO_PARAMETERS,
    Parameters,
    boolean,
    check_no_shared_memory,
    read_timeout,
    whole_number,
)


@dataclass(frozen=True, slots=True)
class InputTensor:
    """An input as it was sent. Its elements are in one of `raw`, `values` and `data`."""

    name: str
    datatype: str
    shape: Sequence[int]
    parameters: Parameters
    raw: BytesLike | None = None
    """Bytes as the binary tensor data extension has them."""
    values: Sequence[object] | None = None
    """Flat, of the type that the datatype has in protobuf; bytes for BYTES."""
    data: object = None
    """A JSON value: a list, flat or nested as the shape says."""


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """An output that is wanted.

    `binary`: whether it goes as bytes, where the protocol has more than one form. `classes`: in
    place of the values, as many best classes; 0: the values.
    """

    name: str
    binary: bool = False
    classes: int = 0


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A request whose parts are each valid; whether they fit the model is another question.

    `inputs` are by name, in the order sent. `outputs` is None for all of them, which then go
    `binary` or not. `id` is empty where there is none. `timeout` is in seconds.
    """

    inputs: Mapping[str, InputTensor]
    outputs: Sequence[RequestedOutput] | None
    id: str
    timeout: float | None
    binary: bool
    parameters: Parameters


def make_request(
    inputs: Sequence[InputTensor],
    outputs: Iterable[tuple[str, Parameters]],
    *,
    id: str = "",  # noqa: A002 - the protocol's word
    parameters: Parameters = NO_PARAMETERS,
) -> InferRequest:
    """Make a request of what was sent: `outputs` are names, each with its parameters.

    Raises InvalidInput with the place of what is wrong, `inputs[1].name`, in the words that the
    protocol has over REST and gRPC alike.
    """
    check_no_shared_memory("parameters", parameters)
    binary = boolean("parameters.binary_data_output", parameters.get("binary_data_output"))
    timeout = read_timeout(parameters)
    by_name: dict[str, InputTensor] = {}
    for position, tensor in enumerate(inputs):
        if tensor.parameters:
            check_no_shared_memory(f"inputs[{position}].parameters", tensor.parameters)
        if tensor.name in by_name:
            raise _repeated("inputs", position, tensor.name)
        by_name[tensor.name] = tensor
    requested = _requested(outputs, binary=binary)
    return InferRequest(by_name, requested or None, id, timeout, binary, parameters)


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
        check_no_shared_memory(place, parameters)
        by_name[name] = RequestedOutput(
            name,
            boolean(f"{place}.binary_data", parameters.get("binary_data"), default=binary),
            whole_number(f"{place}.classification", parameters.get("classification")),
        )
    return list(by_name.values())


def _repeated(part: str, position: int, name: str) -> InvalidInput:
    return InvalidInput(f"{part}[{position}].name repeats {quoted(name)}")
