"""gRPC's own health checking: whether the process, and the inference service, are ready."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from cohort.errors import CohortError, InvalidInput, NotFound, quoted
from cohort.rpc.calls import Handler, RpcCall, begin_call, parse_message, refuse, unary
from cohort.rpc.health_pb2 import DESCRIPTOR, HealthCheckRequest, HealthCheckResponse
from cohort.rpc.transfers import Context, Transfers

HEALTH: str = DESCRIPTOR.services_by_name["Health"].full_name

POLL_SECONDS = 0.25
"""Interval between checks of the state for watchers."""


class Health:
    """The handler of health checks of `services`; the empty name stands for the process."""

    def __init__(self, ready: Callable[[], bool], services: set[str], transfers: Transfers) -> None:
        self._ready = ready
        self._transfers = transfers
        self._services = {"", *services}
        self._closed = asyncio.Event()

    def close(self) -> None:
        """End every watch."""
        self._closed.set()

    def handlers(self) -> dict[str, Handler]:
        """Return the handlers by path."""
        name, check = unary(
            "Check", HealthCheckRequest, self._check, transfers=self._transfers, gate=None
        )
        return {
            f"/{HEALTH}/{name}": check,
            f"/{HEALTH}/Watch": self._watch,
        }

    async def _check(self, request: HealthCheckRequest, call: RpcCall) -> HealthCheckResponse:
        if request.service not in self._services:
            raise NotFound(f"service {quoted(request.service)} not found")
        return self._now(request)

    async def _watch(self, context: Context) -> None:
        trace = begin_call(context, self._transfers, "Watch")
        try:
            with self._transfers.enter_open():
                await self._send_status(context)
        except CohortError as error:
            await refuse(context, error, trace)

    async def _send_status(self, context: Context) -> None:
        with self._transfers.memory.hold() as hold:
            message = await self._transfers.receive(context, due=True, anyone=True)
            if message is None:
                raise InvalidInput("the call ended without a message")
            data = await self._transfers.unpack(context, message, hold, anyone=True)
        request = parse_message(HealthCheckRequest, data)
        last = None
        while not self._closed.is_set():
            now = self._now(request)
            if now != last:
                await context.write(now.SerializeToString())
                last = now
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closed.wait(), POLL_SECONDS)

    def _now(self, request: HealthCheckRequest) -> HealthCheckResponse:
        if request.service not in self._services:
            return HealthCheckResponse(status=HealthCheckResponse.SERVICE_UNKNOWN)
        ready = self._ready()
        return HealthCheckResponse(
            status=HealthCheckResponse.SERVING if ready else HealthCheckResponse.NOT_SERVING
        )
