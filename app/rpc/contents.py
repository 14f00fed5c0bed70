"""Tensors in messages: raw bytes, or values in the field that fits their datatype."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from app.codec import from_bytes, to_bytes
from app.codec.json_tensors import checked_shape
from app.errors import InvalidInput, quoted
from app.rpc.inference_pb2 import InferTensorContents, ModelInferRequest, ModelInferResponse
from app.tensors import Array, Arrays, TensorSpec, check_names

Input = ModelInferRequest.InferInputTensor

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


@dataclass(frozen=True, slots=True)
class NamedTensor:
    """An output as it is answered, under the datatype it goes by."""

    name: str
    datatype: str
    array: Array


def read_inputs(request: ModelInferRequest, specs: Sequence[TensorSpec]) -> Arrays:
    """The request's tensors by name. Raises InvalidInput naming what is wrong.

    Either every tensor is raw, in the order of `inputs`, or none is.
    """
    inputs, raw = request.inputs, request.raw_input_contents
    if raw and len(raw) != len(inputs):
        raise InvalidInput(
            f"raw_input_contents has {len(raw)} entries and inputs has {len(inputs)}: "
            "there must be one for each input, or none at all"
        )
    by_name = {spec.name: spec for spec in specs}
    arrays: Arrays = {}
    for position, tensor in enumerate(inputs):
        name = tensor.name
        spec = by_name.get(name)
        if spec is None:
            check_names(specs, {name: None})
            raise InvalidInput(f"there is no input {quoted(name)}")
        if name in arrays:
            raise InvalidInput(f"input {quoted(name)} is there twice")
        _check_head(tensor, spec)
        if not raw:
            arrays[name] = _read_typed(tensor, spec)
        elif tensor.HasField("contents"):
            raise InvalidInput(
                f"input {quoted(name)} has contents beside raw_input_contents: use one of them"
            )
        else:
            arrays[name] = from_bytes(raw[position], spec.datatype, tensor.shape[:], name=name)
    return arrays


def _check_head(tensor: Input, spec: TensorSpec) -> None:
    name = quoted(spec.name)
    if tensor.datatype != spec.datatype:
        spec.dtype  # noqa: B018 - raises for what cannot be sent at all
        raise InvalidInput(
            f"input {name} is {spec.datatype}, the request says {quoted(tensor.datatype)}"
        )
    if "shared_memory_region" in tensor.parameters:
        raise InvalidInput(f"input {name} is in shared memory, which this server does not read")


def _read_typed(tensor: Input, spec: TensorSpec) -> Array:
    name = quoted(spec.name)
    field = FIELDS.get(spec.datatype)
    if field is None:
        raise InvalidInput(
            f"input {name} is {spec.datatype}, which travels in raw_input_contents only"
        )
    for used, _ in tensor.contents.ListFields():
        if used.name != field:
            raise InvalidInput(
                f"input {name} is {spec.datatype}: its values belong in {field}, not {used.name}"
            )
    shape = checked_shape(spec.name, spec.datatype, tensor.shape[:])
    values = getattr(tensor.contents, field)
    if len(values) != prod(shape):
        raise InvalidInput(
            f"input {name} has {len(values)} values in {field}, its shape {list(shape)} takes "
            f"{prod(shape)}"
        )
    return _values(values, spec, name).reshape(shape)


def _values(values: Sequence[object], spec: TensorSpec, name: str) -> Array:
    if spec.datatype == "BYTES":
        return np.array([_text(value, name) for value in values], np.object_)  # type: ignore[arg-type]
    if spec.datatype in {"INT8", "INT16", "UINT8", "UINT16"}:  # sent wider than they are
        wide = np.array(values, np.int64)
        limits = np.iinfo(spec.dtype)  # type: ignore[type-var]
        if wide.size and (wide.min() < limits.min or wide.max() > limits.max):
            raise InvalidInput(f"input {name} has a value that is no {spec.datatype}")
        return wide.astype(spec.dtype)
    return np.array(values, spec.dtype)


def _text(value: bytes, name: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise InvalidInput(f"input {name} has a value that is not UTF-8") from None


def write_outputs(
    response: ModelInferResponse, tensors: Sequence[NamedTensor], *, typed: bool
) -> None:
    """Put `tensors` into `response`: raw, or `typed` where every one of them has a field for it."""
    typed = typed and all(tensor.datatype in FIELDS for tensor in tensors)
    for tensor in tensors:
        array = tensor.array
        output = response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=array.shape)
        if typed:
            _write_typed(output.contents, tensor)
        else:
            response.raw_output_contents.append(bytes(to_bytes(array)))  # it takes no view


def _write_typed(contents: InferTensorContents, tensor: NamedTensor) -> None:
    field = getattr(contents, FIELDS[tensor.datatype])
    values = tensor.array.ravel().tolist()
    if tensor.datatype == "BYTES":
        values = [value.encode() if isinstance(value, str) else value for value in values]
    field.extend(values)
