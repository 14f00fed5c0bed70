"""An inference request's JSON and the binary data behind it, as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from cohort.codec import parse_json
from cohort.codec.json_tensors import shown
from cohort.codec.long_json import LISTS, few_of
from cohort.codec.other_forms import V2, other_form
from cohort.errors import InvalidInput, quoted, quoted_names
from cohort.open_inference import (
    NO_PARAMETERS,
    InferRequest,
    InputTensor,
    Parameters,
    is_shared,
    make_request,
)
from cohort.tensors import BY_NAME, TensorSpec


def parse_infer(body: bytes, header_length: int | None = None) -> InferRequest:
    """Read a request. The first `header_length` bytes of `body` are JSON; None means all.

    Raises InvalidInput that names the wrong field.
    """
    length = len(body) if header_length is None else header_length
    return infer_of_document(parse_json(body[:length]), memoryview(body)[length:])


def infer_of_document(parsed: object, rest: memoryview) -> InferRequest:
    """Read a request from its parsed JSON and the bytes that follow. Raises InvalidInput."""
    document = json_object("the body", parsed)
    if not isinstance(document.get("inputs"), LISTS) and (hint := other_form(document, V2)):
        raise InvalidInput(f"inputs must be a list of objects, each with a name{hint}")
    parameters = parameters_of("parameters", document)
    return make_request(
        _inputs(document, rest),
        _outputs(document),
        id=request_id(document.get("id")),
        parameters=parameters,
    )


def parse_header_length(text: str | None, size: int) -> int | None:
    """Return the JSON length that a header announces for `size` bytes. Raises InvalidInput."""
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise InvalidInput(
            f"Inference-Header-Content-Length must be a number of bytes, got {quoted(text)}"
        )
    if int(text) > size:
        raise InvalidInput(
            f"Inference-Header-Content-Length is {text}, but the body has only {size} bytes"
        )
    return int(text)


def raw_request(specs: Sequence[TensorSpec], body: bytes) -> InferRequest:
    """Return the request for a body that is only the data of the model's one input.

    The shape follows from the size. If more than one dimension is open, the first is 1. A BYTES
    input takes the body as its one element. Raises InvalidInput.
    """
    if len(specs) != 1:
        raise InvalidInput(
            "a body without JSON (Inference-Header-Content-Length: 0) needs a model with one "
            f"input; this one has {quoted_names(spec.name for spec in specs)}"
        )
    (spec,) = specs
    spec.dtype  # noqa: B018 - raises for types that cannot be sent
    shape = [size if isinstance(size, int) else -1 for size in spec.shape or ()]
    if spec.datatype == "BYTES" and spec.shape is not None:
        shape = [1 if size < 0 else size for size in shape]
        body = len(body).to_bytes(4, "little") + body
    elif shape.count(-1) > 1 and shape[0] < 0:
        shape[0] = 1
    if spec.shape is None or shape.count(-1) > 1:
        raise InvalidInput(
            f"the shape of input {quoted(spec.name)}, {spec.shape_text}, cannot be derived from "
            "the body's size; send it in JSON"
        )
    if -1 in shape:
        axis = shape.index(-1)
        bits = prod(size for size in shape if size >= 0) * BY_NAME[spec.datatype].bits
        shape[axis], rest = divmod(len(body) * 8, max(1, bits))
        if rest >= 8:  # fewer bits are padding of the last byte
            unit = "a multiple" if axis else "a whole number of rows"
            raise InvalidInput(
                f"{len(body)} bytes are not {unit} of {bits / 8:g} bytes: input "
                f"{quoted(spec.name)} is {spec.datatype} of shape {spec.shape_text}"
            )
    return make_request(
        [InputTensor(spec.name, spec.datatype, shape, NO_PARAMETERS, body)],
        (),
        parameters={"binary_data_output": True},
    )


def _inputs(document: Mapping[str, Any], rest: memoryview) -> list[InputTensor]:
    inputs = []
    at = 0
    for place, member in _members(document, "inputs"):
        parameters = parameters_of(f"{place}.parameters", member)
        size = parameters.get("binary_data_size")
        raw = None
        if size is not None:
            raw = _cut(rest, at, size, place, has_data="data" in member)
            at += len(raw)
        elif "data" not in member and not is_shared(parameters):
            raise InvalidInput(f"{place} has neither data nor parameters.binary_data_size")
        inputs.append(
            InputTensor(
                _string(f"{place}.name", member.get("name")),
                _string(f"{place}.datatype", member.get("datatype")),
                _list(f"{place}.shape", member.get("shape")),
                parameters,
                raw,
                data=member.get("data"),
            )
        )
    if at != len(rest):
        raise InvalidInput(
            f"{len(rest)} bytes follow the JSON, but binary_data_size of the inputs adds up to {at}"
        )
    return inputs


def _cut(rest: memoryview, at: int, size: object, place: str, *, has_data: bool) -> memoryview:
    where = f"{place}.parameters.binary_data_size"
    if has_data:
        raise InvalidInput(f"{place} has both data and parameters.binary_data_size")
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise InvalidInput(f"{where} must be a number of bytes, got {shown(size)}")
    if at + size > len(rest):
        raise InvalidInput(
            f"{where} is {size}, but only {len(rest) - at} bytes of binary data remain"
        )
    return rest[at : at + size]


def _outputs(document: Mapping[str, Any]) -> list[tuple[str, Parameters]]:
    if document.get("outputs") is None:
        return []
    return [
        (
            _string(f"{place}.name", member.get("name")),
            parameters_of(f"{place}.parameters", member),
        )
        for place, member in _members(document, "outputs")
    ]


def _members(document: Mapping[str, Any], key: str) -> list[tuple[str, Mapping[str, Any]]]:
    members = _list(key, document.get(key))
    return [(f"{key}[{i}]", json_object(f"{key}[{i}]", one)) for i, one in enumerate(members)]


def parameters_of(place: str, holder: Mapping[str, Any]) -> Parameters:
    """Return an object's `parameters`, or an empty mapping. Raises InvalidInput."""
    given = holder.get("parameters")
    return NO_PARAMETERS if given is None else json_object(place, given)


def request_id(value: object) -> str:
    """Return a request's id; "" if it is absent. Raises InvalidInput."""
    if value is None:
        return ""
    return str(value) if value.__class__ is int else _string("id", value)


def _string(place: str, value: object) -> str:
    if not isinstance(value, str):
        raise _unfit(place, "a string", value)
    return value


def _list(place: str, value: object) -> list[Any]:
    if not isinstance(value, LISTS):
        raise _unfit(place, "a list", value)
    return few_of(value)


def json_object(place: str, value: object) -> Mapping[str, Any]:
    """Return `value` if it is an object. Raises InvalidInput."""
    if not isinstance(value, dict):
        raise InvalidInput(f"{place} must be a JSON object, got {shown(value)}")
    return value


def _unfit(place: str, kind: str, value: object) -> InvalidInput:
    if value is None:
        return InvalidInput(f"{place} is missing")
    return InvalidInput(f"{place} must be {kind}, got {shown(value)}")
