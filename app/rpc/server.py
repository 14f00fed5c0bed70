"""The gRPC server: its calls, limits, start and stop."""

from __future__ import annotations

import asyncio
import socket
from functools import partial

import grpc
from grpc import aio
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from app.access_log import AccessLog
from app.auth import Authority
from app.control_plane import ControlPlane
from app.data_plane import DataPlane
from app.rpc import inference_pb2 as messages
from app.rpc.admin import AdminCalls
from app.rpc.calls import CallerGate, RpcCall, unary, unary_bytes
from app.rpc.descriptor_pool import add
from app.rpc.health import Health
from app.rpc.infer import InferCalls
from app.rpc.metadata import MetadataCalls
from app.rpc.reflecting import reflection_handlers
from app.rpc.streams import Streams
from app.rpc.transfers import CallMetadata, Transfers
from app.rpc.wire import InferMessage

SERVICE = messages.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name

add(
    health_pb2.DESCRIPTOR.serialized_pb, reflection_pb2.DESCRIPTOR.serialized_pb
)  # where reflection looks


STREAMS_PER_CONNECTION = 1024
"""Calls in progress on one connection; clients keep further ones back."""

OPEN_CALLS_SHARE = 16
"""Of so many calls, one may need no key: the others are for callers who have one."""

HANDSHAKE_SECONDS = 20
"""How long a connection may take to begin to speak HTTP/2."""

PING_SECONDS, PING_TIMEOUT_SECONDS = 60, 20
"""How often a connection is asked whether its peer is there, and how long it may take to answer."""


class RpcServer:
    """Open Inference on one port, with health checking and reflection, on the running loop.

    data: Serves inference calls.
    control: Serves all other calls.
    max_message_bytes: The size of a message at most, in both directions.
    max_connections: How many connections there may be; further ones are closed at once.
    max_calls: How many calls may be in progress; further ones get RESOURCE_EXHAUSTED.
    idle_seconds: How long a connection may have no call.
    authority: Decides who may call, and who may load and unload models.
    access_log: Takes a line for each call; default None: there is none.
    several: Whether other workers listen on the port, too; default: no.
    """

    def __init__(
        self,
        data: DataPlane,
        control: ControlPlane,
        *,
        max_message_bytes: int,
        max_connections: int,
        max_calls: int,
        idle_seconds: float,
        authority: Authority,
        access_log: AccessLog | None = None,
        several: bool = False,
    ) -> None:
        self._infer_calls = InferCalls(data, max_message_bytes)
        self._transfers = Transfers(
            data.memory,
            max_message_bytes,
            max(1, max_calls // OPEN_CALLS_SHARE),
            access_log,
        )
        self._gate = CallerGate(authority)
        read = self._infer_calls.read
        self._streams = Streams(
            "ModelStreamInfer", read, self._answer, gate=self._gate, transfers=self._transfers
        )
        self._health = Health(lambda: control.readiness().ready, {SERVICE}, self._transfers)
        self._watching: asyncio.Task[None] | None = None
        self._server = aio.server(
            handlers=(
                self._calls(MetadataCalls(control), AdminCalls(control, authority)),
                self._health.handlers(),
            ),
            options=(
                ("grpc.max_receive_message_length", max_message_bytes),
                ("grpc.max_send_message_length", max_message_bytes),
                ("grpc.per_message_decompression", 0),  # Transfers unpacks them
                (
                    "grpc.so_reuseport",
                    int(several),
                ),  # else a second process on the port is an error
                ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.keepalive_time_ms", PING_SECONDS * 1000),
                ("grpc.keepalive_timeout_ms", PING_TIMEOUT_SECONDS * 1000),
                ("grpc.max_allowed_incoming_connections", max_connections),
                ("grpc.max_connection_idle_ms", int(idle_seconds * 1000)),
                ("grpc.server_handshake_timeout_ms", HANDSHAKE_SECONDS * 1000),
                ("grpc.max_concurrent_streams", STREAMS_PER_CONNECTION),
            ),
            maximum_concurrent_rpcs=max_calls,
        )
        names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        self._server.add_generic_rpc_handlers((reflection_handlers(names, self._transfers),))

    async def start(
        self, host: str, port: int, credentials: grpc.ServerCredentials | None = None
    ) -> int:
        """Listen, with TLS where there are credentials, and return the port.

        Raises OSError where the address is not available.
        """
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if credentials is None:
                bound = self._server.add_insecure_port(address)
            else:
                bound = self._server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise _why_not_bound(host, port) from error
        await self._server.start()
        self._watching = asyncio.create_task(self._transfers.watch(bound))
        return bound

    def end_reading(self) -> None:
        """Refuse calls whose message is not whole: the server stops, and waits for no more."""
        self._transfers.end_receiving()

    async def stop(self, grace: float) -> None:
        """Accept no more calls, and cancel those that do not finish within `grace` seconds."""
        self._streams.close()
        self._health.close()
        await self._server.stop(grace)
        if self._watching is not None:
            self._watching.cancel()

    async def _infer(self, data: bytes, call: RpcCall) -> bytes:
        return await self._answer(await self._infer_calls.read(data), call, streamed=False)

    async def _answer(self, read: InferMessage, call: RpcCall, *, streamed: bool = True) -> bytes:
        context, trace, models, hold, priority = call

        def metadata() -> CallMetadata:
            return context.invocation_metadata() or ()

        return await self._infer_calls.infer(
            read,
            context.time_remaining,
            metadata,
            models,
            trace=trace,
            peer=context.peer,
            hold=hold,
            priority=priority,
            streamed=streamed,
        )

    def _calls(self, metadata: MetadataCalls, admin: AdminCalls) -> grpc.GenericRpcHandler:
        known = partial(unary, transfers=self._transfers, gate=self._gate)
        anyone = partial(unary, transfers=self._transfers, gate=None)
        handlers = [
            anyone("ServerLive", messages.ServerLiveRequest, metadata.live),
            anyone("ServerReady", messages.ServerReadyRequest, metadata.ready),
            known("ServerMetadata", messages.ServerMetadataRequest, metadata.server),
            known("ModelReady", messages.ModelReadyRequest, metadata.model_ready),
            known("ModelMetadata", messages.ModelMetadataRequest, metadata.model),
            known("ModelConfig", messages.ModelConfigRequest, metadata.config),
            known("ModelStatistics", messages.ModelStatisticsRequest, metadata.statistics),
            unary_bytes("ModelInfer", self._infer, transfers=self._transfers, gate=self._gate),
            self._streams.handler(),
            known("RepositoryIndex", messages.RepositoryIndexRequest, metadata.index),
            known("RepositoryModelLoad", messages.RepositoryModelLoadRequest, admin.load),
            known("RepositoryModelUnload", messages.RepositoryModelUnloadRequest, admin.unload),
        ]
        return grpc.method_handlers_generic_handler(SERVICE, dict(handlers))


def _why_not_bound(host: str, port: int) -> OSError:
    """The system's reason why an address cannot be had: gRPC only logs it."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        return error
    return OSError("gRPC cannot bind it")
