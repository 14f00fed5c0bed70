"""Inference messages to and from plain values: tensors raw, or in the field of their datatype."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from app.codec import to_bytes
from app.errors import InvalidInput
from app.open_inference import (
    NO_PARAMETERS,
    InferRequest,
    InferResponse,
    InputTensor,
    OutputTensor,
    Parameters,
    make_request,
)
from app.rpc.inference_pb2 import (
    InferParameter,
    InferTensorContents,
    ModelInferRequest,
    ModelInferResponse,
    ModelRepositoryParameter,
)
from app.tensors import BY_NAME

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
"""Where a datatype's values go; one that is missing here travels raw."""


def read_request(message: ModelInferRequest) -> InferRequest:
    """Give the request as plain values. Raises InvalidInput with the place of what is wrong.

    Either every tensor is raw, in the order of `inputs`, or none is.
    """
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise InvalidInput(
            f"raw_input_contents has {len(raw)} entries and inputs has {len(message.inputs)}: "
            "there must be one for each input, or none at all"
        )
    inputs = [
        InputTensor(
            tensor.name,
            tensor.datatype,
            tensor.shape[:],
            read_parameters(tensor.parameters),
            raw=_raw(position, tensor, raw[position]) if raw else None,
            values=None if raw else _values(position, tensor),
        )
        for position, tensor in enumerate(message.inputs)
    ]
    return make_request(
        inputs,
        ((output.name, read_parameters(output.parameters)) for output in message.outputs),
        id=message.id,
        parameters=read_parameters(message.parameters),
    )


def read_parameters(
    parameters: Mapping[str, InferParameter] | Mapping[str, ModelRepositoryParameter],
) -> Parameters:
    """Give each parameter's value, whichever of its fields holds it; None where none does."""
    if not parameters:
        return NO_PARAMETERS
    values: dict[str, object] = {}
    for name, parameter in parameters.items():
        field = parameter.WhichOneof("parameter_choice")
        values[name] = None if field is None else getattr(parameter, field)
    return values


def _raw(position: int, tensor: ModelInferRequest.InferInputTensor, content: bytes) -> bytes:
    if tensor.HasField("contents"):
        raise InvalidInput(
            f"inputs[{position}] has contents beside raw_input_contents: use one of them"
        )
    return content


def _values(position: int, tensor: ModelInferRequest.InferInputTensor) -> Sequence[object]:
    datatype = tensor.datatype
    field = FIELDS.get(datatype)
    if field is None:
        if datatype in BY_NAME:
            raise InvalidInput(
                f"inputs[{position}] is {datatype}, which travels in raw_input_contents only"
            )
        return ()  # no model takes it
    for used, _ in tensor.contents.ListFields():
        if used.name != field:
            raise InvalidInput(
                f"inputs[{position}] is {datatype}: its values belong in {field}, not {used.name}"
            )
    values: Sequence[object] = getattr(tensor.contents, field)
    return values


def write_response(response: InferResponse, *, typed: bool) -> ModelInferResponse:
    """Give the message: raw, or `typed` where every output has a field for its datatype."""
    message = ModelInferResponse(
        model_name=response.model, model_version=response.version, id=response.id
    )
    if response.variant:
        message.parameters["variant"].string_param = response.variant
    typed = typed and all(tensor.datatype in FIELDS for tensor in response.outputs)
    for tensor in response.outputs:
        array = tensor.array
        output = message.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=array.shape)
        if typed:
            _write_typed(output.contents, tensor)
        else:
            message.raw_output_contents.append(bytes(to_bytes(array)))  # it takes no view
    return message


def _write_typed(contents: InferTensorContents, tensor: OutputTensor) -> None:
    field = getattr(contents, FIELDS[tensor.datatype])
    values: Iterable[object] = tensor.array.ravel().tolist()
    if tensor.datatype == "BYTES":
        values = [value.encode() if isinstance(value, str) else value for value in values]
    field.extend(values)
