"""Reflection: grpcio-reflection's servicer, with messages that are received as all others are.

It is imported with the first call: grpcio takes 20 MB, and serves nothing else here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from functools import cache
from typing import Any

from grpc_reflection.v1alpha.reflection_pb2 import DESCRIPTOR, ServerReflectionRequest

from cohort.errors import CohortError
from cohort.rpc.calls import Handler, begin_call, parse_message, refuse
from cohort.rpc.descriptor_pool import POOL
from cohort.rpc.transfers import Context, Transfers

REFLECTION: str = DESCRIPTOR.services_by_name["ServerReflection"].full_name
_METHOD = "ServerReflectionInfo"


def reflection_handlers(services: Iterable[str], transfers: Transfers) -> dict[str, Handler]:
    """By their paths; `services` are those that it tells of."""

    @cache
    def servicer() -> Any:
        from grpc_reflection.v1alpha import reflection  # noqa: PLC0415 - imports grpcio

        return reflection.aio.ReflectionServicer(services, pool=POOL)

    async def reflect(context: Context) -> None:
        trace = begin_call(context, transfers, _METHOD)

        async def received() -> AsyncIterator[ServerReflectionRequest]:
            message = await transfers.receive(context, due=True, anyone=True)
            while message is not None:
                with transfers.memory.hold() as hold:
                    data = await transfers.unpack(context, message, hold, anyone=True)
                    yield parse_message(ServerReflectionRequest, data)
                message = await transfers.receive(context, anyone=True)

        try:
            with transfers.enter_open():
                reflecting = await asyncio.to_thread(servicer)
                async for response in reflecting.ServerReflectionInfo(received(), context):
                    await context.write(response.SerializeToString())
        except CohortError as error:
            await refuse(context, error, trace)

    return {f"/{REFLECTION}/{_METHOD}": reflect}
