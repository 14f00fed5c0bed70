"""Reflection: grpcio-reflection's servicer, with messages that are received as all others are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

import grpc
from grpc_reflection.v1alpha import reflection
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest

from app.errors import CohortError
from app.rpc.calls import Handler, begin_call, parse_message, refuse
from app.rpc.descriptor_pool import POOL
from app.rpc.transfers import Context, Transfers

METHOD = "ServerReflectionInfo"


def reflection_handlers(services: Iterable[str], transfers: Transfers) -> grpc.GenericRpcHandler:
    """For gRPC; `services` are those that it tells of."""
    servicer = reflection.aio.ReflectionServicer(services, pool=POOL)

    async def reflect(requests: object, context: Context) -> None:
        del requests
        trace = begin_call(context, transfers, METHOD)

        async def received() -> AsyncIterator[ServerReflectionRequest]:
            data = await transfers.receive(context, due=True, anyone=True)
            while data is not None:
                with transfers.memory.hold() as hold:
                    data = await transfers.unpack(data, hold, anyone=True)
                    yield parse_message(ServerReflectionRequest, data)
                data = await transfers.receive(context, anyone=True)

        try:
            with transfers.enter_open():
                responses: Any = servicer.ServerReflectionInfo(received(), context)
                async for response in responses:  # the stubs take it for a coroutine
                    await transfers.write(context, response.SerializeToString())
        except CohortError as error:
            await refuse(context, error, trace)

    handler: Handler = grpc.stream_stream_rpc_method_handler(reflect)
    return grpc.method_handlers_generic_handler(reflection.SERVICE_NAME, {METHOD: handler})
