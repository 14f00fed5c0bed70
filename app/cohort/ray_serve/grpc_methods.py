"""The Open Inference service for Ray's gRPC proxy: messages pass as bytes."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from cohort.errors import CohortError
from cohort.rpc import inference_pb2 as messages
from cohort.rpc.errors import details_of

SERVICE = messages.DESCRIPTOR.services_by_name["GRPCInferenceService"]

UNARY = [one.name for one in SERVICE.methods if not one.client_streaming]
"""The methods with one message and one response."""

STREAM = "ModelStreamInfer"


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
    handlers[STREAM] = grpc.stream_stream_rpc_method_handler(getattr(servicer, STREAM))
    handler = grpc.method_handlers_generic_handler(SERVICE.full_name, handlers)
    server.add_generic_rpc_handlers((handler,))


def failed_message(error: CohortError, message: bytes) -> bytes:
    """Return the response of a stream to a message that no replica answered."""
    response = messages.ModelStreamInferResponse(error_message=f"{error.code}: {details_of(error)}")
    with suppress(DecodeError):
        response.infer_response.id = messages.ModelInferRequest.FromString(message).id
    return response.SerializeToString()


def model_in(method: str, message: bytes) -> str | None:
    """Return the model that a message names; None if it does not name one."""
    kind = SERVICE.methods_by_name[method].input_type
    parsed: Any = getattr(messages, kind.name)
    try:
        found = parsed.FromString(message)
    except DecodeError:
        return None  # the replica answers with the reason
    for field in ("model_name", "name"):
        if field in kind.fields_by_name:
            return getattr(found, field) or None
    return None
