"""gRPC reflection, which describes the services to clients without the .proto files.

Old clients use v1alpha, new ones v1. Only the package names differ, so messages of v1 serve both.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from cohort.errors import CohortError
from cohort.rpc.calls import Handler, begin_call, parse_message, refuse
from cohort.rpc.descriptor_pool import POOL
from cohort.rpc.reflection_pb2 import (
    DESCRIPTOR,
    ServerReflectionRequest,
    ServerReflectionResponse,
)
from cohort.rpc.status import StatusCode
from cohort.rpc.transfers import Context, Transfers

REFLECTIONS = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
"""The names of the service."""

_METHOD = "ServerReflectionInfo"


def _v1alpha() -> bytes:
    """Return the file of v1 under the names of v1alpha."""
    old, new = DESCRIPTOR.package, f"{DESCRIPTOR.package}alpha"
    file = FileDescriptorProto.FromString(DESCRIPTOR.serialized_pb)
    file.name = file.name.replace("reflection", "reflection_v1alpha")
    file.package = new
    for message in file.message_type:
        for field in message.field:
            if field.type_name:  # an empty name that is set is refused
                field.type_name = field.type_name.replace(old, new)
    for method in file.service[0].method:
        method.input_type = method.input_type.replace(old, new)
        method.output_type = method.output_type.replace(old, new)
    return file.SerializeToString()


_POOL: Any = POOL  # types-protobuf has no types for its methods
_POOL.AddSerializedFile(_v1alpha())


def reflection_handlers(services: Iterable[str], transfers: Transfers) -> dict[str, Handler]:
    """Return the handlers by their paths; `services` are the names that they list."""
    names = sorted(services)

    async def reflect(context: Context) -> None:
        trace = begin_call(context, transfers, _METHOD)
        receive = partial(transfers.receive, context, anyone=True)
        try:
            with transfers.enter_open():
                message = await receive(due=True)
                while message is not None:
                    with transfers.memory.hold() as hold:
                        data = await transfers.unpack(context, message, hold, anyone=True)
                        response = _respond(parse_message(ServerReflectionRequest, data), names)
                        await context.write(response.SerializeToString())
                    message = await receive()
        except CohortError as error:
            await refuse(context, error, trace)

    return {f"/{name}/{_METHOD}": reflect for name in REFLECTIONS}


def _respond(request: ServerReflectionRequest, services: Iterable[str]) -> ServerReflectionResponse:
    """Answer a request; an unknown name gives an error inside the response."""
    response = ServerReflectionResponse(valid_host=request.host, original_request=request)
    try:
        match request.WhichOneof("message_request"):
            case "file_by_filename":
                _describe(_POOL.FindFileByName(request.file_by_filename), response)
            case "file_containing_symbol":
                _describe(_file_of(request.file_containing_symbol), response)
            case "file_containing_extension":
                asked = request.file_containing_extension
                extended = _POOL.FindMessageTypeByName(asked.containing_type)
                extension = _POOL.FindExtensionByNumber(extended, asked.extension_number)
                _describe(extension.file, response)
            case "all_extension_numbers_of_type":
                extended = _POOL.FindMessageTypeByName(request.all_extension_numbers_of_type)
                numbers = sorted(
                    extension.number for extension in _POOL.FindAllExtensions(extended)
                )
                response.all_extension_numbers_response.base_type_name = extended.full_name
                response.all_extension_numbers_response.extension_number.extend(numbers)
            case "list_services":
                for name in services:
                    response.list_services_response.service.add(name=name)
            case _:
                response.error_response.error_code = StatusCode.INVALID_ARGUMENT
                response.error_response.error_message = "the request asks nothing known"
    except KeyError:
        response.error_response.error_code = StatusCode.NOT_FOUND
        response.error_response.error_message = "not found"
    return response


def _file_of(symbol: str) -> FileDescriptor:
    """Return the file that declares a symbol. Raises KeyError."""
    try:
        found: FileDescriptor = _POOL.FindFileContainingSymbol(symbol)
    except KeyError:  # this lookup does not find methods
        found = _POOL.FindMethodByName(symbol).containing_service.file
    return found


def _describe(file: FileDescriptor, response: ServerReflectionResponse) -> None:
    """Send one file, which is all that a client needs: Cohort's files import no others."""
    response.file_descriptor_response.file_descriptor_proto.append(file.serialized_pb)
