"""Calls of the gRPC services, and the fields of their messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cohort.rpc import health_pb2, inference_pb2, reflection_pb2
from tools.release.facts import Facts

FILES = (inference_pb2, health_pb2, reflection_pb2)


def grpc_items() -> dict[str, Facts]:
    """Return each call, message, field and value of an enumeration, by its full name."""
    found: dict[str, Facts] = {}
    for file in FILES:
        for service in file.DESCRIPTOR.services_by_name.values():
            found |= _service(service)
        for message in file.DESCRIPTOR.message_types_by_name.values():
            found |= _message(message)
        for kind in file.DESCRIPTOR.enum_types_by_name.values():
            found |= _values(kind)
    return found


def _service(service: Any) -> Iterator[tuple[str, Facts]]:
    yield service.full_name, {}
    for method in service.methods:
        yield (
            method.full_name,
            {
                "request": method.input_type.full_name,
                "response": method.output_type.full_name,
                "streams": [method.client_streaming, method.server_streaming],
            },
        )


def _message(message: Any) -> Iterator[tuple[str, Facts]]:
    yield message.full_name, {}
    for field in message.fields:
        kind = field.message_type or field.enum_type
        yield (
            field.full_name,
            {
                "number": field.number,
                "type": kind.full_name if kind else field.type,
                "repeated": field.is_repeated,
            },
        )
    for below in message.nested_types:
        yield from _message(below)
    for below in message.enum_types:
        yield from _values(below)


def _values(kind: Any) -> Iterator[tuple[str, Facts]]:
    yield kind.full_name, {}
    for value in kind.values:
        yield f"{kind.full_name}.{value.name}", {"number": value.number}
