"""A replica: the engine with all its routes, without a port that callers reach."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, aclosing
from functools import partial
from time import monotonic
from typing import Any

import grpc
from ray import serve

from cohort.connections.address_counts import Addresses
from cohort.errors import CohortError, NotLoaded, NotReady
from cohort.process.application import make_application
from cohort.process.rpc import make_rpc
from cohort.process.service import Service
from cohort.ray_serve.asgi import answer
from cohort.ray_serve.metrics import RayMetrics, durations
from cohort.ray_serve.scaling import BUSY_SECONDS, QUEUE_SECONDS
from cohort.ray_serve.wire import HttpRequest, HttpResponse, RpcRequest, RpcResponse
from cohort.rpc.server import SERVICE
from cohort.settings import read_settings

LOCAL, MAX_CONNECTIONS = "127.0.0.1", 64
"""The address of the replica's gRPC server, which only the replica calls."""

LOAD_SECONDS = 300.0
"""Limit of the wait for the first models, after which the replica's constructor fails."""

PLACE_SECONDS, POLL_SECONDS = 10.0, 0.1
"""Limit of the wait for a place among the loaded models, and the interval of its tries."""

SCALING_SECONDS = 0.5
"""Shortest interval over which the statistics for autoscaling are measured."""


class Replica:
    """Answers requests of both protocols with the models of a folder.

    settings: Settings of `cohort serve`.
    model: The only model that is loaded from the start; None: as the settings say.

    Raises SettingsInvalid, and RuntimeError if no model is ready in time.
    """

    def __init__(self, settings: Mapping[str, Any], model: str | None = None) -> None:
        self.service = Service(read_settings(dict(settings)))
        self.application = make_application(self.service)
        self._model = model
        self._stack = AsyncExitStack()
        self._starting: asyncio.Task[None] | None = None
        self._channel: grpc.aio.Channel
        self._metrics = RayMetrics(self.service.control_plane)
        self._seen = (monotonic(), 0.0, 0, 0.0)
        self._stats = {QUEUE_SECONDS: 0.0, BUSY_SECONDS: 0.0}

    async def started(self) -> None:
        """Start on first use, on the event loop of the requests, and wait until models serve."""
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        await asyncio.shield(self._starting)

    async def _start(self) -> None:
        service = self.service
        await self._stack.enter_async_context(service.running())
        server = make_rpc(service, Addresses(MAX_CONNECTIONS))
        port = await server.start(LOCAL, 0)
        self._channel = grpc.aio.insecure_channel(
            f"{LOCAL}:{port}",
            options=[("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)],
        )
        async with asyncio.timeout(LOAD_SECONDS):
            await service.core.registry.first_loaded()
            if self._model is not None:
                await self.load(self._model)
        self._metrics.begin()

    async def load(self, model: str) -> str:
        """Wait until a model is loaded that is loaded on demand; return its name.

        Raises NotReady if the other models are in use for PLACE_SECONDS.
        """
        plane = self.service.core.data_plane
        pick = partial(plane.pick, model)
        end = monotonic() + PLACE_SECONDS
        while True:
            try:
                pick().close()
            except NotLoaded as error:
                (await plane.pick_loaded(error, pick, None))[0].close()
            except NotReady:
                if monotonic() > end:
                    raise
                await asyncio.sleep(POLL_SECONDS)
                continue
            return model

    async def held(self, model: str) -> str:
        """Load the model of a request, as `load`; a multiplexed replica overrides it."""
        return model

    async def check_health(self) -> None:
        """Raise RuntimeError if the replica is not ready, so that Ray replaces it."""
        await self.started()
        readiness = self.service.control_plane.readiness()
        if not readiness.ready:
            raise RuntimeError(f"not ready: {readiness.reason}")

    async def http(self, request: HttpRequest, model: str | None) -> HttpResponse:
        """Answer an HTTP request, as `cohort serve` does."""
        async with aclosing(self.http_stream(request, model)) as pieces:
            response: HttpResponse = await anext(pieces)
            response.body += b"".join([piece async for piece in pieces])
            response.more = False
            return response

    async def http_stream(self, request: HttpRequest, model: str | None) -> AsyncGenerator[Any]:
        """Yield a response, then the pieces of its body that follow."""
        await self._prepare(model)
        async with aclosing(answer(self.application, request)) as pieces:
            async for piece in pieces:
                yield piece

    async def rpc(self, request: RpcRequest, model: str | None) -> RpcResponse:
        """Answer a unary gRPC call, as `cohort serve` does."""
        await self._prepare(model)
        call: Any = self._channel.unary_unary(f"/{SERVICE}/{request.method}")
        metadata = [(name, value) for name, value in request.metadata if _is_callers(name)]
        try:
            return RpcResponse(await call(request.message, metadata=metadata))
        except grpc.aio.AioRpcError as error:
            return _failed(error)

    async def rpc_stream(
        self, request: RpcRequest, model: str | None
    ) -> AsyncGenerator[RpcResponse]:
        """Answer one message of a stream: with one response or several."""
        await self._prepare(model)
        metadata = [(name, value) for name, value in request.metadata if _is_callers(name)]
        method: Any = self._channel.stream_stream(f"/{SERVICE}/{request.method}")
        call = method(iter([request.message]), metadata=metadata)
        try:
            async for message in call:
                yield RpcResponse(message)
        except grpc.aio.AioRpcError as error:
            yield _failed(error)
        finally:
            call.cancel()

    async def _prepare(self, model: str | None) -> None:
        await self.started()
        if model is None or model not in self.service.core.registry.catalog:
            return
        try:
            await self.held(model)
        except CohortError:
            return  # the request itself gets the error

    def record_autoscaling_stats(self) -> Mapping[str, float]:
        """Return the mean time in the queue, and the run time per second, of the last interval."""
        then, queued, requests, busy = self._seen
        now = monotonic()
        if now - then < SCALING_SECONDS:
            return self._stats
        queue_now, requests_now, busy_now = durations(self.service.core.metrics)
        self._seen = now, queue_now, requests_now, busy_now
        self._stats = {
            QUEUE_SECONDS: (queue_now - queued) / max(requests_now - requests, 1),
            BUSY_SECONDS: (busy_now - busy) / (now - then),
        }
        return self._stats


def _failed(error: grpc.aio.AioRpcError) -> RpcResponse:
    trailing = [(name, value) for name, value in error.trailing_metadata() or ()]
    return RpcResponse(b"", error.code().value[0], error.details() or "", trailing)


def _is_callers(name: str) -> bool:
    """Return False for metadata of the connection to Ray's proxy."""
    return not name.startswith((":", "grpc-")) and name not in {"user-agent", "content-type", "te"}


def replica_class(models_per_replica: int | None) -> type[Replica]:
    """Return the class of replicas that have this number of models loaded; None: all."""
    if models_per_replica is None:
        return Replica

    class MultiplexedReplica(Replica):
        """A replica that reports its loaded models to Ray."""

        @serve.multiplexed(max_num_models_per_replica=models_per_replica)  # type: ignore[untyped-decorator]
        async def held(self, model: str) -> str:
            """Load a model; the least recently used one makes room."""
            return await self.load(model)

    return MultiplexedReplica
