"""The HTTP server: uvicorn, with a graceful shutdown in steps."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from functools import partial
from importlib import import_module
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING, Any

import structlog
import uvicorn

from cohort.connections.addresses import (
    BACKLOG,
    address_for_people,
    cannot_listen,
    check_rpc_address,
    listened,
    open_http,
)
from cohort.connections.listeners import handles_of, port_of
from cohort.http.fast_path import WatchedConnection, protocol_factory
from cohort.http.tls import TlsConnection
from cohort.observability.tracing import Tracer, TracingUnavailable, open_tracing
from cohort.process import logs
from cohort.process.lifespan import LaterApplication
from cohort.process.service import Service
from cohort.repository import ConfigProblems
from cohort.session import share_machine
from cohort.settings import Settings
from cohort.workers.answers import answers_of
from cohort.workers.connected_worker import ConnectedWorker
from cohort.workers.membership import Membership
from cohort.workers.systemd import Systemd

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from cohort.rpc import RpcServer

log = structlog.get_logger("cohort")

LAST_REQUEST_SECONDS = 2.0
"""Time for open connections to send a last request after the listeners have closed."""

SIGN_SECONDS = 5.0
"""Interval of status messages to systemd if it does not watch the process."""

OPENING_SECONDS = 0.05
"""Interval of the readiness checks before the port for gRPC is opened."""

EXIT_SECONDS = 2.0
"""Time that threads may delay the process after everything else has ended."""

OVERDUE_SECONDS = 7.0
"""Maximum time of the whole stop beyond the notice and the time to drain.

It is also the time limit of the steps after that. Then the process exits with 1 and logs the stacks
of its threads. A C thread does this without the interpreter's lock.
"""

RUNTIME_THREADS = frozenset({"cohort-run", "cohort-load", "cohort-open", "cohort-measure"})
"""Threads in which ONNX Runtime may be busy. It aborts a process that exits during their work."""


def serve(settings: Settings, membership: Membership | None = None) -> None:
    """Serve until a signal; with a `membership`, as one of several workers.

    Raises SystemExit if the address is not available.
    """
    place = None if membership is None else membership.place
    with logs.configured(settings.log_format, settings.log_level, place) as writer:
        _serve(settings, writer, membership)


def _serve(settings: Settings, writer: logs.LogWriter, membership: Membership | None) -> None:
    worker = None if membership is None else ConnectedWorker(membership)
    if membership is not None:
        share_machine(membership.count)
    access_log = logs.access_log(writer, settings.log_format) if settings.access_log else None
    tracer = _open_tracer(membership)
    try:
        service = Service(
            settings,
            log=writer,
            access_log=access_log,
            siblings=None if worker is None else worker.siblings,
            tracer=tracer,
        )
    except ConfigProblems as error:
        for problem in error.problems:
            log.error("cannot start", reason=str(problem))  # noqa: TRY400 - the reason suffices
        raise SystemExit(1) from None
    app = LaterApplication(service, _make_application)
    for number in (signal.SIGTERM, signal.SIGINT):  # before and after `Server` handles them
        signal.signal(number, lambda *_: _exit(int(service.failed)))
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=_protocol_factory(service),  # type: ignore[arg-type]  # called as the class it names would be
        ws="none",
        log_config=None,
        access_log=False,
        backlog=BACKLOG,
        server_header=False,
        timeout_keep_alive=settings.keep_alive_seconds,
        timeout_graceful_shutdown=settings.drain_seconds,
    )
    listeners = [] if worker is not None else listen(settings)
    if membership is None or membership.first:
        port = membership.port if membership is not None else port_of(listeners[0])
        service.core.start_up.begin(address_for_people(settings, port, tls=service.tls is not None))
    systemd = Systemd.of(os.environ)
    Server(config, service, then_exit=True, systemd=systemd, worker=worker).run(
        [handle for listener in listeners for handle in handles_of(listener)]
    )
    status = int(service.failed)
    if any(thread.name in RUNTIME_THREADS for thread in threading.enumerate()):
        _exit(status)
    if status:
        raise SystemExit(status)


def _open_tracer(membership: Membership | None) -> Tracer | None:
    """Start tracing if the environment asks for it. Raises SystemExit, after logging why."""
    try:
        return open_tracing(os.environ, None if membership is None else membership.place)
    except TracingUnavailable as error:
        log.error("cannot start", reason=str(error))  # noqa: TRY400 - the reason suffices
        raise SystemExit(1) from None


def _protocol_factory(service: Service) -> Callable[..., asyncio.Protocol]:
    """Make the `http` argument of `uvicorn.Config`: connections of the fast path, over TLS."""
    plain, tls = protocol_factory(service.hot), service.tls
    if tls is None:
        return plain

    def connection(**arguments: Any) -> asyncio.Protocol:
        return TlsConnection(
            service.hot,
            service.handshakes,
            connections=arguments["server_state"].connections,
            context=lambda: tls.current.context,
            make_protocol=partial(plain, **arguments),
        )

    return connection


def listen(settings: Settings) -> list[socket.socket]:
    """Listen for HTTP. Raises SystemExit, after logging why, if an address is not available."""
    try:
        listeners = open_http(settings)
    except OSError as error:
        reason = cannot_listen(error, settings.port, setting="port")
        log.error("cannot start", reason=reason)  # noqa: TRY400 - the reason suffices
        raise SystemExit(1) from None
    log.info("listening for HTTP", **listened(listeners, settings))
    return listeners


def _make_application(service: Service) -> ASGIApp:
    """Return FastAPI's application. Its import takes half a second."""
    application = import_module("cohort.process.application")
    made: ASGIApp = application.make_application(service)
    return made


async def _start_rpc(service: Service, worker: ConnectedWorker | None) -> RpcServer | None:
    """Start the gRPC server. Its import runs on a thread, and takes 0.2 s."""
    rpc = await asyncio.to_thread(import_module, "cohort.process.rpc")
    started: RpcServer | None = await rpc.start_rpc(service, worker)
    return started


def _exit(status: int) -> None:
    """End the process at once, after writing the queued log lines."""
    logs.flush()
    os._exit(status)


class Server(uvicorn.Server):
    """A uvicorn server that shuts down as a replica behind a load balancer should.

    1. After the first signal, readiness answers 503, and requests are still accepted for
       `drain_notice_seconds`, so that load balancers remove the replica.
    2. The listeners close. Open connections may send a last request, for LAST_REQUEST_SECONDS; each
       response closes its connection. A request that is incomplete after that is refused.
    3. Requests in flight finish, within `drain_seconds`, and the process exits with 0. Work that
       still runs EXIT_SECONDS later, such as a model load, is abandoned. If the process still has
       not ended, it exits with 1, OVERDUE_SECONDS after the notice and `drain_seconds`.

    A second signal ends the process at once. SIGHUP rereads all files.

    then_exit: True if the process ends with the server, at most EXIT_SECONDS later.
    systemd: Receives the start, the health and the stop; default: no notifications.
    worker: Provides connections instead of listeners; default: this is not a worker.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        service: Service,
        *,
        then_exit: bool = False,
        systemd: Systemd | None = None,
        worker: ConnectedWorker | None = None,
    ) -> None:
        super().__init__(config)
        self._service = service
        self._then_exit = then_exit
        self._systemd = systemd or Systemd()
        self._worker = worker
        self._rpc: RpcServer | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin the shutdown, without notice for Ctrl-C (SIGINT); exit at a second signal."""
        loop = self._loop
        if self._service.control_plane.draining:
            log.warning("stopped by a second signal")
            _exit(128 + sig)
        self._service.control_plane.begin_draining()
        self._systemd.notify("STOPPING=1", "STATUS=draining")
        if sig == signal.SIGINT or loop is None:
            self._end_within(self._service.settings.drain_seconds)
            self.should_exit = True
            return
        seconds = self._service.settings.drain_notice_seconds
        self._end_within(seconds + self._service.settings.drain_seconds)
        log.info("draining", notice_seconds=seconds)
        loop.call_soon_threadsafe(loop.call_later, seconds, self._end_notice)

    def _end_within(self, seconds: float) -> None:
        """Exit the process if its end takes OVERDUE_SECONDS longer than `seconds`."""
        if self._then_exit:
            faulthandler.dump_traceback_later(seconds + OVERDUE_SECONDS, exit=True, file=2)

    _loop: asyncio.AbstractEventLoop | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve HTTP on `sockets`, and gRPC, until the end of the shutdown."""
        self._loop = asyncio.get_running_loop()
        if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
            self._loop.add_signal_handler(signal.SIGHUP, self._service.files.watch.check_now)
        if self._worker is None:  # otherwise its parent did
            check_rpc_address(self._service.settings)
        signs = asyncio.create_task(self._give_signs_of_life())
        opening = asyncio.create_task(self._open_rpc())
        try:
            await super().serve(sockets)
        finally:  # without `shutdown` where uvicorn could not start
            signs.cancel()
            opening.cancel()
            if self._rpc is not None:
                await self._rpc.stop(0)
            if self._then_exit:
                exiting = threading.Timer(EXIT_SECONDS, _exit, [int(self._service.failed)])
                exiting.daemon = True
                exiting.start()
                self._end_within(0.0)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept, and report it to systemd or the parent."""
        if self._worker is not None:
            service = self._service
            answers = answers_of(
                self._worker.siblings.place,
                service.process_plane,
                service.core.registry,
                service.core.rollouts,
                service.files.rollouts,
            )
            await self._worker.introduce(answers, self._retire)
        unix = [one for one in sockets or [] if one.family == socket.AF_UNIX]
        await super().startup([one for one in sockets or [] if one not in unix])
        for listener in unix:
            self.servers.append(
                await asyncio.get_running_loop().create_unix_server(
                    self._make_protocol, sock=listener, backlog=BACKLOG
                )
            )
        if not self.should_exit:
            self._systemd.notify("READY=1")
            if self._worker is not None:
                self.server_state.connections = self._worker.connections
                self._worker.accept(self._service.lifecycle, self._serve_accepted)

    def _retire(self) -> None:
        """Shut down without notice: the parent passes no more connections to this worker."""
        self._service.control_plane.begin_draining()
        self._systemd.notify("STOPPING=1", "STATUS=retiring")
        self._end_within(self._service.settings.drain_seconds)
        self.should_exit = True

    async def _open_rpc(self) -> None:
        """Listen for gRPC as soon as everything else is ready.

        Few load balancers ask a gRPC server for its readiness: they rely on the open port.
        """
        lifecycle = self._service.lifecycle
        if not self._service.settings.grpc_port:
            return
        lifecycle.opening = "the port for gRPC is not open yet"
        while lifecycle.readiness().reason != lifecycle.opening:  # noqa: ASYNC110 - it has many causes
            await asyncio.sleep(OPENING_SECONDS)
        try:
            self._rpc = await _start_rpc(self._service, self._worker)
        except SystemExit:  # raised in a task, it would stop the loop
            self._service.failed = self.should_exit = True
        else:
            lifecycle.opening = ""

    async def _give_signs_of_life(self) -> None:
        """Send systemd the status, and that the process is alive while it needs no restart."""
        systemd, lifecycle = self._systemd, self._service.lifecycle
        while systemd.listens:
            readiness = lifecycle.readiness()
            status = "ready" if readiness.ready else f"not ready: {readiness.reason}"
            systemd.notify(f"STATUS={status}".replace("\n", " "))
            if lifecycle.liveness().ready:
                systemd.notify("WATCHDOG=1")
            await asyncio.sleep(systemd.watchdog_seconds / 4 or SIGN_SECONDS)

    def _end_notice(self) -> None:
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the listeners and wait for requests in flight; see the class."""
        for listener in sockets or []:
            await self._accept_all(listener)
        if self._worker is not None:
            await self._worker.stop_accepting()
        for server in self.servers:
            server.close()
        for listener in sockets or []:
            listener.close()
        began, grace = monotonic(), self._service.settings.drain_seconds
        self._service.ends_by = began + grace
        rpc = asyncio.create_task(self._rpc.stop(grace)) if self._rpc is not None else None
        until = began + min(LAST_REQUEST_SECONDS, grace)
        while self.server_state.connections and monotonic() < until:  # noqa: ASYNC110 - uvicorn has no event
            await asyncio.sleep(0.02)
        for connection in list(self.server_state.connections):
            if isinstance(connection, WatchedConnection):
                connection.end_reading()
        if self._rpc is not None and rpc is not None:
            self._rpc.end_reading()
            await rpc  # before the lifespan ends, and with it the models
        self.config.timeout_graceful_shutdown = max(0, grace - int(monotonic() - began))
        await super().shutdown(sockets)
        if self._worker is not None:
            await self._worker.leave()
        log.info("stopped")

    async def _accept_all(self, listener: socket.socket) -> None:
        """Accept connections in the kernel's queue: closing the listener would reset them."""
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # the queue is empty
                return
            connection.setblocking(False)
            await self._serve_accepted(connection)

    async def _serve_accepted(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(self._make_protocol, connection)

    def _make_protocol(self) -> asyncio.Protocol:
        return self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
