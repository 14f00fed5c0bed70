"""The gRPC server: its calls, limits, start and stop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from math import inf
from time import monotonic

from cohort.auth.authority import Authority
from cohort.connections.address_counts import Addresses
from cohort.connections.listeners import handles_of, open_listeners, port_of
from cohort.connections.turns import Turns
from cohort.errors import Overloaded, quoted
from cohort.http2 import (
    CallHeads,
    ConnectionLimits,
    ErrorCode,
    Http2Connection,
    ServedStream,
    Stream,
)
from cohort.http2.send_queue import Part
from cohort.observability.access_log import AccessLog
from cohort.observability.request_ids import new_request_id
from cohort.observability.tracing import Tracer
from cohort.open_inference import NO_REGIONS, Regions
from cohort.operating import ControlPlane
from cohort.rpc import inference_pb2 as messages
from cohort.rpc.admin import AdminCalls
from cohort.rpc.calls import CallerGate, Handler, RpcCall, unary, unary_bytes
from cohort.rpc.context import TaskCall
from cohort.rpc.errors import details_of, grpc_status, metadata_of
from cohort.rpc.health import HEALTH, Health
from cohort.rpc.infer import InferCalls
from cohort.rpc.metadata import MetadataCalls
from cohort.rpc.reflecting import REFLECTIONS, reflection_handlers
from cohort.rpc.shared_memory import SharedMemoryCalls
from cohort.rpc.small_messages import SmallCall, SmallMessages
from cohort.rpc.status import StatusCode
from cohort.rpc.streams import InferStream, StreamService
from cohort.rpc.transfers import Transfers
from cohort.serving import DataPlane

SERVICE = messages.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name
_INFER_PATH, _STREAM_PATH = f"/{SERVICE}/ModelInfer", f"/{SERVICE}/ModelStreamInfer"

OPEN_CALLS_SHARE = 16
"""The share of calls that need no key: one in this number; the rest is for callers with a key."""

TICK_SECONDS = 1.0
"""Interval between checks for idle, slow or late connections and calls."""

END_SECONDS = 0.2
"""Time limit for connections to send the final statuses of their calls."""

MAX_UNACCEPTED = 1024
"""Maximum number of connections that wait to be accepted."""

SMALL_HEAD_BYTES, HEADS_SHARE = 4096, 4
"""Heads up to this size are not counted: the number of calls limits them.

The counted heads of all calls in progress may use at most 1/HEADS_SHARE of the memory budget.
"""

FULLEST_SECONDS, FIRST_CALLS = 0.1, 8
"""Seconds to cache the connection with the most calls, and the number of its oldest calls that are
searched for one to refuse."""

Secure = Callable[[Callable[[], asyncio.Protocol]], asyncio.Protocol]
"""A function that puts TLS below the protocol that another function makes."""


class RpcServer:
    """The Open Inference server on one port, with health checking and reflection.

    It runs on the running event loop.

    data: Serves inference calls.
    control: Serves all other calls.
    max_message_bytes: Maximum size of a message, in both directions.
    max_connections: Maximum number of connections; further ones are closed at once.
    addresses: Counts and limits the connections of each address; further ones are closed at once.
    max_calls: Maximum number of calls in progress; further ones get RESOURCE_EXHAUSTED.
    idle_seconds: Maximum time of a connection without a call.
    authority: Decides which callers may call, and which may load and unload models.
    access_log: Receives a line for each call; default None: no lines.
    several: True if other workers listen on the same port; default False.
    connections: The set of open connections; default: a new set.
    regions: The callers' shared memory regions; default: shared memory is off.
    tracer: Traces calls; default None: nothing is traced.
    max_age, grace: As in `ConnectionLimits`; default: connections may have any age.
    """

    def __init__(
        self,
        data: DataPlane,
        control: ControlPlane,
        *,
        max_message_bytes: int,
        max_connections: int,
        addresses: Addresses,
        max_calls: int,
        idle_seconds: float,
        authority: Authority,
        access_log: AccessLog | None = None,
        several: bool = False,
        connections: set[Http2Connection] | None = None,
        regions: Regions = NO_REGIONS,
        tracer: Tracer | None = None,
        max_age: float = inf,
        grace: float = inf,
    ) -> None:
        self._infer_calls = InferCalls(data, max_message_bytes, regions)
        self._shared_memory = SharedMemoryCalls(regions)
        self._transfers = Transfers(
            data.memory,
            max_message_bytes,
            max(1, max_calls // OPEN_CALLS_SHARE),
            access_log,
            tracer,
        )
        self._gate = CallerGate(authority)
        self._small = SmallMessages(data, self._gate, self._transfers)
        self._streams = StreamService(
            self._infer_calls.read,
            self._infer_calls.infer_streamed,
            self._gate,
            self._transfers,
            self._small,
        )
        self._health = Health(lambda: control.readiness().ready, {SERVICE}, self._transfers)
        names = (SERVICE, HEALTH, *REFLECTIONS)
        self._handlers: dict[str, Handler] = {
            **self._calls(MetadataCalls(control), AdminCalls(control, authority)),
            **self._health.handlers(),
            **reflection_handlers(names, self._transfers),
        }
        open_calls = ("ServerLive", "ServerReady")
        self._open = frozenset(
            path
            for path in self._handlers
            if not path.startswith(f"/{SERVICE}/") or path.rpartition("/")[2] in open_calls
        )
        self._limits = ConnectionLimits(
            memory=data.memory,
            heads=CallHeads(),
            begin=self._begin,
            ended=self._ended,
            opened=self._opened,
            closed=self._closed,
            idle_seconds=idle_seconds,
            turns=Turns(between=0.0),
            max_age=max_age,
            grace=grace,
        )
        self._calls_open = 0
        self._memory, self._heads = data.memory, data.memory.hold()
        self._max_connections, self._max_calls = max_connections, max_calls
        self._addresses = addresses
        self._connections: set[Http2Connection] = set() if connections is None else connections
        self._fullest: Http2Connection
        self._fullest_until = 0.0
        self._over = asyncio.Event()  # set when the last connection closes
        self._several = several
        self._stopping = False
        self._servers: list[asyncio.Server] = []
        self._ticking: asyncio.TimerHandle | None = None
        self._make: Callable[[], asyncio.Protocol] = partial(Http2Connection, self._limits)

    async def start(self, hosts: str, port: int, secure: Secure | None = None) -> int:
        """Listen, with TLS if `secure` is given, and return the port.

        Raises OSError if an address is not available.
        """
        loop = asyncio.get_running_loop()
        listeners = open_listeners(hosts, port, backlog=MAX_UNACCEPTED, shared=self._several)

        self.begin(secure)
        for handle in [one for listener in listeners for one in handles_of(listener)]:
            self._servers.append(
                await loop.create_server(self._make, sock=handle, backlog=MAX_UNACCEPTED)
            )
        return port_of(listeners[0])

    def begin(self, secure: Secure | None = None) -> None:
        """Begin to serve the connections given to `take`, with TLS if `secure` is given."""
        if secure is not None:
            self._make = partial(secure, self._make)
        self._ticking = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)

    async def take(self, connection: socket.socket) -> None:
        """Serve an accepted connection."""
        await asyncio.get_running_loop().connect_accepted_socket(self._make, connection)

    def end_reading(self) -> None:
        """Refuse calls whose message is incomplete, because the server stops."""
        for call in self._open_calls():
            call.end_reading()

    async def stop(self, grace: float) -> None:
        """Accept no more calls, and cancel those that do not finish within `grace` seconds."""
        self._stopping = True
        for call in self._open_calls():
            call.close()
        self._health.close()
        if self._ticking is None:
            return
        for server in self._servers:
            server.close()
        for connection in list(self._connections):
            connection.drain()
        await self._wait_until_over(grace)
        for connection in list(self._connections):
            connection.fail(ErrorCode.NO_ERROR, "shutting down")
        await self._wait_until_over(END_SECONDS)
        for connection in list(self._connections):
            connection.transport.abort()
        self._ticking.cancel()

    async def _wait_until_over(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._connections:
                    self._over.clear()
                    await self._over.wait()

    # -- connections

    def _opened(self, connection: Http2Connection) -> bool:
        self._connections.add(connection)
        allowed = self._addresses.enter(connection.address)
        room = len(self._connections) <= self._max_connections
        return allowed and room and not self._stopping

    def _closed(self, connection: Http2Connection) -> None:
        self._connections.discard(connection)
        self._addresses.leave(connection.address)
        if not self._connections:
            self._over.set()

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        self._ticking = loop.call_later(TICK_SECONDS, self._tick)
        self._limits.useless.tick()
        for connection in list(self._connections):
            connection.tick(loop.time())
        now = monotonic()
        for call in self._open_calls():
            call.tick(now)

    def _open_calls(self) -> list[ServedStream]:
        return [
            stream.call
            for connection in self._connections
            for stream in connection.streams.values()
            if stream.call is not None
        ]

    # -- calls

    def _begin(self, stream: Stream) -> None:
        path = stream.head.call.path
        self._calls_open += 1
        if stream.head.bad_timeout:
            stream.finish(StatusCode.INVALID_ARGUMENT, "grpc-timeout cannot be read")
            stream.connection.count_useless()
        elif self._calls_open > self._max_calls and not self._make_room():
            most = self._max_calls
            self._refuse(stream, f"the server already has {most} calls in progress")
        elif stream.head.held > SMALL_HEAD_BYTES and not self._hold_head(stream):
            self._refuse(stream, "the headers of calls take all the memory that they may")
        elif path == _INFER_PATH:
            stream.call = SmallCall(stream, self._small, self._serve)
        elif path == _STREAM_PATH:
            call = InferStream(stream, self._streams)
            stream.call = call
            call.start()
            if self._stopping:
                call.close()
        elif path in self._handlers:
            self._serve(stream)
        else:
            stream.finish(StatusCode.UNIMPLEMENTED, f"method {quoted(path)} not found")
            stream.connection.count_useless()

    def _make_room(self) -> bool:
        """Refuse a waiting call of the connection with most calls; return True if one was found.

        Otherwise calls that stay open without a message would exhaust the limit for all.
        """
        now = monotonic()
        if now >= self._fullest_until or not self._fullest.streams:
            self._fullest = max(self._connections, key=lambda one: len(one.streams))
            self._fullest_until = now + FULLEST_SECONDS
        for stream in islice(self._fullest.streams.values(), FIRST_CALLS):
            if stream.call is not None and stream.call.waits_for_caller:
                stream.call.refuse(Overloaded("the server has too many calls to wait for this one"))
                return True
        return False

    def _serve(self, stream: Stream) -> TaskCall:
        """Serve a stream by a task."""
        path = stream.head.call.path
        call = TaskCall(stream, self._handlers[path], self._transfers.most(path in self._open))
        stream.call = call
        return call

    def _hold_head(self, stream: Stream) -> bool:
        """Count the head of a call; return False if it exceeds the heads' memory limit."""
        heads, size = self._heads, stream.head.held
        most = self._memory.maximum // HEADS_SHARE
        while heads.size + size > most:
            if not self._make_room():
                return False
        stream.head_held = size
        heads.set(heads.size + size)
        return True

    def _ended(self, stream: Stream) -> None:
        self._calls_open -= 1
        if stream.head_held:
            self._heads.set(self._heads.size - stream.head_held)

    def _refuse(self, stream: Stream, why: str) -> None:
        error = Overloaded(why)
        about = metadata_of(error, new_request_id().decode())
        stream.finish(grpc_status(error), details_of(error), about)

    async def _infer(self, data: bytes | bytearray, call: RpcCall) -> Sequence[Part]:
        read = await self._infer_calls.read(data, call.context.parsed)
        return await self._infer_calls.infer(read, call)

    def _calls(self, metadata: MetadataCalls, admin: AdminCalls) -> dict[str, Handler]:
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
            known("RepositoryIndex", messages.RepositoryIndexRequest, metadata.index),
            known("RepositoryModelLoad", messages.RepositoryModelLoadRequest, admin.load),
            known("RepositoryModelUnload", messages.RepositoryModelUnloadRequest, admin.unload),
            *(known(*one) for one in self._shared_memory.calls()),
        ]
        return {f"/{SERVICE}/{name}": handler for name, handler in handlers}
