"""The Open Inference service for Ray's gRPC proxy: messages pass as bytes."""

from __future__ import annotations

from typing import Any

import grpc

from cohort.rpc import inference_pb2 as messages

SERVICE = messages.DESCRIPTOR.services_by_name["GRPCInferenceService"]

UNARY = [one.name for one in SERVICE.methods if not one.client_streaming]
"""The methods that are served. ModelStreamInfer is not: Ray would pin it to one replica."""


class Raw(bytes):
    """A message that is serialized already."""

    def SerializeToString(self) -> bytes:  # noqa: N802 - protobuf's name
        """Return the bytes."""
        return bytes(self)


def add_inference_service(servicer: object, server: Any) -> None:
    """Add the service to Ray's gRPC proxy, as a generated `add_…_to_server` does."""
    handlers: dict[str, Any] = {
        name: grpc.unary_unary_rpc_method_handler(getattr(servicer, name)) for name in UNARY
    }
    handler = grpc.method_handlers_generic_handler(SERVICE.full_name, handlers)
    server.add_generic_rpc_handlers((handler,))


def model_in(method: str, message: bytes) -> str | None:
    """Return the model that a message names; None if it does not name one."""
    kind = SERVICE.methods_by_name[method].input_type
    parsed: Any = getattr(messages, kind.name)
    try:
        found = parsed.FromString(message)
    except ValueError:
        return None  # the replica answers with the reason
    for field in ("model_name", "name"):
        if field in kind.fields_by_name:
            return getattr(found, field) or None
    return None
