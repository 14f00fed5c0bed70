"""Inference messages to and from plain values: tensors raw, or in the field of their datatype."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from cohort.codec import is_own_view, pack_values, to_bytes
from cohort.codec.binary import BytesLike, encode_texts
from cohort.codec.varints import varint
from cohort.errors import InvalidInput
from cohort.http2.send_queue import Part
from cohort.open_inference import (
    NO_PARAMETERS,
    InferRequest,
    InferResponse,
    InputTensor,
    OutputTensor,
    Parameters,
    is_shared,
    make_request,
)
from cohort.rpc.inference_pb2 import (
    InferParameter,
    InferTensorContents,
    ModelInferRequest,
    ModelInferResponse,
    ModelRepositoryParameter,
)
from cohort.rpc.wire import (
    BYTES_CONTENTS,
    DELIMITED,
    SHORT_MESSAGE,
    Contents,
    InferMessage,
    delimited,
)
from cohort.tensors import BY_NAME

FIELDS: Mapping[str, str] = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""The contents field of each datatype; datatypes that are missing here are sent raw."""

COPIED_AT_ONCE = 1 << 20

_OUTPUTS = ModelInferResponse.OUTPUTS_FIELD_NUMBER
_RAW_OUTPUTS = ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER
_CONTENTS = ModelInferResponse.InferOutputTensor.CONTENTS_FIELD_NUMBER


def read_request(read: InferMessage) -> InferRequest:
    """Return the request as plain values. Raises InvalidInput with the place of the problem.

    Either every tensor is raw, in the order of `inputs`, or none is. Tensors in shared memory do
    not count. MLServer's client sends empty `contents` together with a raw tensor; these are
    ignored.
    """
    message, raw, contents = read
    parameters = [read_parameters(tensor.parameters) for tensor in message.inputs]
    sent = [not is_shared(one) for one in parameters]
    if raw and len(raw) == len(sent):
        sent = [True] * len(sent)  # tensors in shared memory may have empty entries
    if raw and len(raw) != sum(sent):
        raise InvalidInput(
            f"raw_input_contents has {len(raw)} entries, but inputs has {sum(sent)}: "
            "there must be one for each input, or none at all"
        )
    raws = iter(raw)
    inputs = []
    for position, tensor in enumerate(message.inputs):
        given: dict[str, Any]
        if not sent[position] and not tensor.contents.ListFields():
            given = {}
        elif raw and sent[position]:
            beside = tensor.contents.ListFields() if contents is None else contents[position]
            given = {"raw": _raw(position, next(raws), has_contents=bool(beside))}
        elif contents is None:
            given = {"values": _values(position, tensor)}
        else:
            given = _cut_out(position, tensor.datatype, contents[position])
        inputs.append(
            InputTensor(
                tensor.name,
                tensor.datatype,
                tensor.shape[:],
                parameters[position],
                **given,
            )
        )
    return make_request(
        inputs,
        ((output.name, read_parameters(output.parameters)) for output in message.outputs),
        id=message.id,
        parameters=read_parameters(message.parameters),
    )


def read_parameters(
    parameters: Mapping[str, InferParameter] | Mapping[str, ModelRepositoryParameter],
) -> Parameters:
    """Return each parameter's value from any of its fields; None if no field is set."""
    if not parameters:
        return NO_PARAMETERS
    values: dict[str, object] = {}
    for name, parameter in parameters.items():
        field = parameter.WhichOneof("parameter_choice")
        values[name] = None if field is None else getattr(parameter, field)
    return values


def _raw(position: int, content: BytesLike, *, has_contents: bool) -> BytesLike:
    if has_contents:
        raise InvalidInput(
            f"inputs[{position}] has contents, but the request has raw_input_contents: use only "
            "one of them"
        )
    return content


def _values(position: int, tensor: ModelInferRequest.InferInputTensor) -> Sequence[object]:
    field = _field(position, tensor.datatype)
    if field is None:
        return ()  # no model has this datatype
    for used, _ in tensor.contents.ListFields():
        _check_field(position, tensor.datatype, field, used.name)
    values: Sequence[object] = getattr(tensor.contents, field)
    return values


def _cut_out(position: int, datatype: str, contents: Contents | None) -> dict[str, Any]:
    """Return the same as `_values`, from contents that were cut out of the message."""
    field = _field(position, datatype)
    if field is None or contents is None:
        return {"values": ()}
    used = [*contents.packed, *([BYTES_CONTENTS] if contents.texts else ())]
    for number in sorted(used):
        name = InferTensorContents.DESCRIPTOR.fields_by_number[number].name
        _check_field(position, datatype, field, name)
    if datatype == "BYTES":
        return {"values": contents.texts}
    return {"packed": next(iter(contents.packed.values()), b"")}


def _field(position: int, datatype: str) -> str | None:
    field = FIELDS.get(datatype)
    if field is None and datatype in BY_NAME:
        raise InvalidInput(
            f"inputs[{position}] is {datatype}, which travels in raw_input_contents only"
        )
    return field


def _check_field(position: int, datatype: str, field: str, used: str) -> None:
    if used != field:
        raise InvalidInput(
            f"inputs[{position}] is {datatype}: its values belong in {field}, not {used}"
        )


def write_response(
    response: InferResponse, *, typed: bool, check: Callable[[], None] = lambda: None
) -> tuple[ModelInferResponse, list[Part]]:
    """Return the message without its tensors, and the tensors: raw, or `typed` if all have a field.

    check: Called repeatedly while texts are written; its exception ends the writing.

    The tensors are parts that follow the message's own bytes; large ones are not copied. Short
    tensors are inside the message.
    """
    message = ModelInferResponse(
        model_name=response.model, model_version=response.version, id=response.id
    )
    if response.variant:
        message.parameters["variant"].string_param = response.variant
    typed = typed and all(tensor.datatype in FIELDS for tensor in response.outputs)
    sizes = [one.array.nbytes for one in response.outputs if one.shared is None]
    if sum(sizes) <= SHORT_MESSAGE:
        _write_short(message, response, typed=typed)
        return message, []
    tail: list[Part] = []
    raw: list[Part] = []
    for tensor in response.outputs:
        array = tensor.array
        output = ModelInferResponse.InferOutputTensor(
            name=tensor.name, datatype=tensor.datatype, shape=array.shape
        )
        if tensor.shared is not None:
            _add_shared(output, tensor.shared)
            tail += delimited(_OUTPUTS, output.SerializeToString())
            raw += [] if typed else delimited(_RAW_OUTPUTS)
            continue
        contents = delimited(_CONTENTS, *_typed(tensor, check)) if typed else []
        tail += delimited(_OUTPUTS, output.SerializeToString(), *contents)
        if not typed:
            data = to_bytes(array, check)
            raw += delimited(_RAW_OUTPUTS, *([data] if is_own_view(array) else _in_parts(data)))
    return message, tail + raw


def _write_short(message: ModelInferResponse, response: InferResponse, *, typed: bool) -> None:
    """Write tensors using protobuf's classes, which is faster for short ones."""
    for tensor in response.outputs:
        array = tensor.array
        output = message.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=array.shape)
        if tensor.shared is not None:
            _add_shared(output, tensor.shared)
            if not typed:
                message.raw_output_contents.append(b"")  # as in Triton: keeps positions
            continue
        if not typed:
            message.raw_output_contents.append(bytes(to_bytes(array)))  # views are invalid
            continue
        values: Iterable[object] = array.ravel().tolist()
        if tensor.datatype == "BYTES":
            values = [value.encode() if isinstance(value, str) else value for value in values]
        getattr(output.contents, FIELDS[tensor.datatype]).extend(values)


def _add_shared(
    output: ModelInferResponse.InferOutputTensor, shared: Mapping[str, str | int]
) -> None:
    for name, value in shared.items():
        if isinstance(value, str):
            output.parameters[name].string_param = value
        else:
            output.parameters[name].int64_param = value


def _typed(tensor: OutputTensor, check: Callable[[], None]) -> list[Part]:
    number = InferTensorContents.DESCRIPTOR.fields_by_name[FIELDS[tensor.datatype]].number
    array = tensor.array.reshape(-1)
    if tensor.datatype != "BYTES":
        return delimited(number, pack_values(array, tensor.datatype)) if array.size else []
    return [
        b"".join([part for text in texts for part in (_head_of_text(len(text)), text)])
        for texts in encode_texts(array, check)
    ]


@lru_cache(1024)
def _head_of_text(size: int) -> bytes:
    """Return the tag and size before an element of BYTES; cached, because few sizes are common."""
    return varint(BYTES_CONTENTS << 3 | DELIMITED) + varint(size)


def _in_parts(data: bytes | memoryview) -> Iterator[bytes]:
    """Copy it in parts, because copying a large tensor at once would block all other work."""
    if isinstance(data, bytes):
        yield data
        return
    for at in range(0, len(data), COPIED_AT_ONCE):
        yield bytes(data[at : at + COPIED_AT_ONCE])
