"""uvicorn with an orderly end: notice, then closed doors, then what is in flight, then exit 0."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
from time import monotonic
from types import FrameType

import structlog
import uvicorn

from app.main import logs
from app.main.application import create_app
from app.main.rpc import RpcServer, start_rpc
from app.main.service import Service
from app.rest.hot import protocol_factory
from app.settings import Settings

log = structlog.get_logger("cohort")

BACKLOG = 2048
"""Connections that may wait to be accepted."""

LINGER_SECONDS = 2.0
"""How long open connections may still bring a request after the listeners closed."""


def serve(settings: Settings) -> None:
    """Serve until told to stop. Raises SystemExit where the address cannot be had."""
    logs.configure(settings.log_format)
    app = create_app(settings)
    service: Service = app.state.service
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=protocol_factory(service.hot),  # type: ignore[arg-type]  # called as the class it names would be
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=settings.keep_alive_seconds,
        timeout_graceful_shutdown=settings.drain_seconds,
    )
    listener = listen(settings.host, settings.port)
    Server(config, service).run([listener])


def listen(host: str, port: int) -> socket.socket:
    """Take the address. Raises SystemExit, having said why, where it cannot be had."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno == errno.EADDRINUSE:
            reason = "address already in use; choose another port with --port or COHORT_PORT"
        log.error("cannot start", address=f"{host}:{port}", reason=reason)  # noqa: TRY400
        raise SystemExit(1) from None
    log.info("HTTP is open", host=host, port=listener.getsockname()[1])
    return listener


class Server(uvicorn.Server):
    """Stops as a replica behind a balancer must.

    On the first signal readiness answers 503, while predictions are still accepted, so that
    balancers take the replica out. After the notice the listeners close; open connections may bring
    a last request, each answer ending its connection; then what is in flight finishes, in bounds.
    """

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self._rpc: RpcServer | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal starts the notice; the second ends it; Ctrl-C needs no notice."""
        loop = self._loop
        if self._service.control_plane.draining or sig == signal.SIGINT or loop is None:
            self._service.control_plane.begin_draining()
            self.force_exit = self.should_exit and sig == signal.SIGINT  # asked twice
            self.should_exit = True
            return
        self._service.control_plane.begin_draining()
        seconds = self._service.settings.drain_notice_seconds
        log.info("draining", notice_seconds=seconds)
        loop.call_soon_threadsafe(loop.call_later, seconds, self._notice_is_over)

    _loop: asyncio.AbstractEventLoop | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._rpc = await start_rpc(self._service)
        try:
            await super().serve(sockets)
        finally:  # where HTTP could not even start, there was no shutdown
            if self._rpc is not None:
                await self._rpc.stop(0)

    def _notice_is_over(self) -> None:
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in sockets or []:
            await self._accept_all(listener)
        for server in self.servers:
            server.close()
        for listener in sockets or []:
            listener.close()
        began, grace = monotonic(), self._service.settings.drain_seconds
        rpc = asyncio.create_task(self._rpc.stop(grace)) if self._rpc is not None else None
        until = monotonic() + LINGER_SECONDS
        while self.server_state.connections and monotonic() < until:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)
        if rpc is not None:
            await rpc  # before the lifespan ends, and with it the models
            self.config.timeout_graceful_shutdown = max(0, grace - int(monotonic() - began))
        self._service.data_plane.close()
        await super().shutdown(sockets)
        log.info("stopped")

    async def _accept_all(self, listener: socket.socket) -> None:
        """Take in whoever the kernel has let in already: closing the listener would reset them."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # nobody waits any more
                return
            connection.setblocking(False)
            await loop.connect_accepted_socket(self._make_protocol, connection)

    def _make_protocol(self) -> asyncio.Protocol:
        return self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
