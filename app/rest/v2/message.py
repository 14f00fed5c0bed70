"""An inference request's JSON and the binary data behind it, read and checked field by field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from app.errors import InvalidInput, quoted

Parameters = Mapping[str, Any]

LONGEST_WAIT = 10**15
"""Microseconds. Above, a timeout is as good as none."""


@dataclass(frozen=True, slots=True)
class InputTensor:
    """An input as it was sent: `data` from JSON, or `raw` bytes where there are some."""

    name: str
    datatype: str
    shape: list[int]
    data: object
    raw: memoryview | None


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """An output asked for, how it shall travel, and as how many classes; 0: as the tensor it is."""

    name: str
    binary: bool
    classes: int = 0


@dataclass(frozen=True, slots=True)
class InferRequest:
    """What is asked. `outputs` is None for all of them, which then go `binary` or not.

    `timeout` is in seconds. `raw` is the whole body where it is nothing but the only input's data.
    """

    inputs: list[InputTensor]
    outputs: list[RequestedOutput] | None = None
    id: str | None = None
    timeout: float | None = None
    binary: bool = False
    raw: bytes | None = None
    parameters: Parameters = field(default_factory=dict)


def parse(body: bytes, header_length: str | None = None) -> InferRequest:
    """Read a request; `header_length` is what Inference-Header-Content-Length says.

    Raises InvalidInput with the field that is wrong.
    """
    length = _header_length(header_length, len(body))
    if length == 0:
        return InferRequest([], binary=True, raw=body)
    document = _object("the body", _load(body if length is None else body[:length]))
    parameters = _parameters("parameters", document)
    binary = _boolean("parameters.binary_data_output", parameters.get("binary_data_output"))
    rest = memoryview(body)[len(body) if length is None else length :]
    return InferRequest(
        _inputs(document, rest),
        _outputs(document, binary=binary),
        _id(document.get("id")),
        _timeout(parameters.get("timeout")),
        binary,
        parameters=parameters,
    )


def _header_length(text: str | None, size: int) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise InvalidInput(f"Inference-Header-Content-Length is no length: {quoted(text)}")
    if int(text) > size:
        raise InvalidInput(f"Inference-Header-Content-Length is {text}, the body has {size} bytes")
    return int(text)


def _load(text: bytes) -> object:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"the body is not valid JSON: {error}") from None


def _inputs(document: Mapping[str, Any], rest: memoryview) -> list[InputTensor]:
    inputs: dict[str, InputTensor] = {}
    at = 0
    for place, member in _members(document, "inputs"):
        parameters = _parameters(f"{place}.parameters", member)
        size = parameters.get("binary_data_size")
        raw = None
        if size is not None:
            raw = _cut(rest, at, size, place, has_data="data" in member)
            at += size
        elif "data" not in member:
            raise InvalidInput(f"{place} has neither data nor parameters.binary_data_size")
        name = _string(f"{place}.name", member.get("name"))
        if name in inputs:
            raise InvalidInput(f"{place}.name is {quoted(name)} a second time")
        inputs[name] = InputTensor(
            name,
            _string(f"{place}.datatype", member.get("datatype")),
            _list(f"{place}.shape", member.get("shape")),
            member.get("data"),
            raw,
        )
    if at != len(rest):
        raise InvalidInput(
            f"{len(rest)} bytes follow the JSON, binary_data_size of the inputs adds up to {at}"
        )
    return list(inputs.values())


def _cut(rest: memoryview, at: int, size: object, place: str, *, has_data: bool) -> memoryview:
    where = f"{place}.parameters.binary_data_size"
    if has_data:
        raise InvalidInput(f"{place} has both data and parameters.binary_data_size")
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise InvalidInput(f"{where} is a number of bytes, got {_shown(size)}")
    if at + size > len(rest):
        raise InvalidInput(f"{where} is {size}, of which {len(rest) - at} bytes are there")
    return rest[at : at + size]


def _outputs(document: Mapping[str, Any], *, binary: bool) -> list[RequestedOutput] | None:
    if document.get("outputs") in (None, []):
        return None
    outputs: dict[str, RequestedOutput] = {}
    for place, member in _members(document, "outputs"):
        parameters = _parameters(f"{place}.parameters", member)
        name = _string(f"{place}.name", member.get("name"))
        if name in outputs:
            raise InvalidInput(f"{place}.name is {quoted(name)} a second time")
        own = parameters.get("binary_data")
        where = f"{place}.parameters"
        outputs[name] = RequestedOutput(
            name,
            binary if own is None else _boolean(f"{where}.binary_data", own),
            _classes(f"{where}.classification", parameters.get("classification")),
        )
    return list(outputs.values())


def _members(document: Mapping[str, Any], key: str) -> list[tuple[str, Mapping[str, Any]]]:
    members = _list(key, document.get(key))
    return [(f"{key}[{i}]", _object(f"{key}[{i}]", one)) for i, one in enumerate(members)]


def _parameters(place: str, holder: Mapping[str, Any]) -> Parameters:
    given = holder.get("parameters")
    if given is None:
        return {}
    parameters = _object(place, given)
    for name in parameters:
        if name.startswith("shared_memory_"):
            raise InvalidInput(f"{place}.{name}: this server takes no shared memory")
    return parameters


def _id(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if value.__class__ is int:
        return str(value)
    raise InvalidInput(f"id is a string, got {_shown(value)}")


def _timeout(value: object) -> float | None:
    """Triton's is in microseconds, and its 0 means none."""
    if value is None or (value.__class__ is int and value == 0):
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < LONGEST_WAIT:
        raise InvalidInput(f"parameters.timeout is in whole microseconds, got {_shown(value)}")
    return value / 1e6


def _classes(place: str, value: object) -> int:
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidInput(f"{place} is how many classes, from 1, got {_shown(value)}")
    return value


def _boolean(place: str, value: object) -> bool:
    if value is None:
        return False
    if not isinstance(value, bool):
        raise InvalidInput(f"{place} is true or false, got {_shown(value)}")
    return value


def _string(place: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"{place} is a string, got {_shown(value)}")
    return value


def _list(place: str, value: object) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidInput(f"{place} is a list, got {_shown(value)}")
    return value


def _object(place: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInput(f"{place} is a JSON object, got {_shown(value)}")
    return value


def _shown(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return quoted(orjson.dumps(value).decode(), 40)[1:-1]
