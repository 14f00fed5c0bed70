"""The messages' numbers on the wire."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tritonclient.grpc import service_pb2

from cohort.rpc import inference_pb2

OURS_ALONE = tuple(
    f"inference.modelmetadataresponse.{name}" for name in ("properties", "optional_inputs")
)
"""Only KServe has the former, and no server the latter: Triton lists optional inputs as others."""


def fields(message: Any) -> Iterator[tuple[str, tuple[int, int, bool]]]:
    """Each field's full name with its number, its type and whether it repeats."""
    for field in message.fields:
        yield field.full_name, (field.number, field.type, field.is_repeated)
    for nested in message.nested_types:
        yield from fields(nested)


def test_messages_are_those_of_tritons_client() -> None:
    """Every field of ours has the number and type it has in the client from PyPI.

    Both live in this process: neither's names get in the other's way.
    """
    files = [service_pb2.DESCRIPTOR, *service_pb2.DESCRIPTOR.dependencies]
    theirs = {
        name: wire
        for file in files
        for message in file.message_types_by_name.values()
        for name, wire in fields(message)
    }
    ours = {
        name: wire
        for message in inference_pb2.DESCRIPTOR.message_types_by_name.values()
        for name, wire in fields(message)
        if not name.lower().startswith(OURS_ALONE)
    }
    assert ours.items() <= theirs.items()


def test_calls_are_those_of_tritons_client() -> None:
    """Each call takes and gives the messages of the same names, streaming alike."""
    theirs, ours = (
        {
            method.name: (
                method.input_type.full_name,
                method.output_type.full_name,
                method.client_streaming,
                method.server_streaming,
            )
            for method in module.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods
        }
        for module in (service_pb2, inference_pb2)
    )
    assert ours.items() <= theirs.items()
    left_out = set(theirs) - set(ours)
    assert all(
        "SharedMemory" in name or name.endswith(("Setting", "Settings")) for name in left_out
    )
