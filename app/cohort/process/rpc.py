"""The gRPC server of the process, on the event loop of the HTTP server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from math import inf

import structlog

from cohort.connections.address_counts import Addresses
from cohort.connections.addresses import refuse_rpc_address
from cohort.http.fast_path.shared import Watched
from cohort.http.tls import TlsConnection
from cohort.process.resources import part_of
from cohort.process.service import Service
from cohort.rpc import RpcServer
from cohort.rpc.server import Secure
from cohort.workers.connected_worker import ConnectedWorker

log = structlog.get_logger("cohort")

HANDSHAKE_CHECK_SECONDS = 1.0
"""Interval of the checks of unfinished TLS handshakes."""


async def start_rpc(service: Service, worker: ConnectedWorker | None = None) -> RpcServer | None:
    """Start the gRPC server; return None if `grpc_port` is 0.

    worker: Gets its connections from a parent; default None: this process listens.

    Raises SystemExit, after logging the reason, if the address is not available.
    """
    settings = service.settings
    if not settings.grpc_port:
        return None

    addresses = Addresses(settings.max_connections_per_address)
    server = make_rpc(service, addresses, worker)
    if worker is not None and worker.gets_rpc:
        server.begin(_secure(service, addresses))
        await worker.accept_rpc(server.take)
        return server
    try:
        await server.start(settings.host, settings.grpc_port, _secure(service, addresses))
    except OSError as error:
        refuse_rpc_address(error, settings)
    log.info("listening for gRPC", host=settings.host, port=settings.grpc_port)
    return server


def make_rpc(
    service: Service, addresses: Addresses, worker: ConnectedWorker | None = None
) -> RpcServer:
    """Return the gRPC server of a service, which does not listen yet.

    addresses: Counts the connections of each address.
    worker: As in `start_rpc`.
    """
    settings = service.settings
    return RpcServer(
        service.core.data_plane,
        service.control_plane,
        max_message_bytes=settings.max_body_mb * 2**20,
        max_connections=service.connections.grpc,
        addresses=addresses,
        max_calls=part_of(settings.max_concurrency, settings.workers),
        several=worker is not None,
        connections=None if worker is None else worker.rpc_connections,
        idle_seconds=settings.keep_alive_seconds,
        authority=service.authority,
        access_log=service.access_log,
        regions=service.regions,
        tracer=service.tracer,
        max_age=settings.grpc_max_connection_age_seconds or inf,
        grace=settings.drain_seconds,
    )


class HandshakeCrowd:
    """The gRPC connections with unfinished TLS handshakes.

    max_connections: Their maximum; further ones are closed at once.
    addresses: The connections of each address, finished handshakes included.
    """

    def __init__(self, max_connections: int, addresses: Addresses) -> None:
        self.max_connections = max_connections
        self.addresses = addresses
        self.connections: set[Watched] = set()
        self._watching = False

    def make_room(self, connections: Collection[Watched]) -> bool:
        """Return True if there is room for the newest of them."""
        return len(connections) <= self.max_connections

    def watch(self, connections: Collection[Watched], loop: asyncio.AbstractEventLoop) -> None:
        """Check the connections regularly, as long as there are any, and close slow ones."""
        if not self._watching:
            self._watching = True
            loop.call_later(HANDSHAKE_CHECK_SECONDS, self._check, connections, loop)

    def _check(self, connections: Collection[Watched], loop: asyncio.AbstractEventLoop) -> None:
        self._watching = False
        now = loop.time()
        for connection in list(connections):
            self.watch(connections, loop)
            connection.close_if_idle(now)


def _secure(service: Service, addresses: Addresses) -> Secure | None:
    """Return the function that adds TLS to gRPC connections; None without TLS."""
    tls = service.tls
    if tls is None:
        return None
    crowd = HandshakeCrowd(service.connections.grpc, addresses)

    def secure(make_protocol: Callable[[], asyncio.Protocol]) -> asyncio.Protocol:
        return TlsConnection(
            crowd,
            service.handshakes,
            connections=crowd.connections,
            context=lambda: tls.current.grpc,
            make_protocol=make_protocol,
        )

    return secure
