"""Signals and the steps of a shutdown, with a loop whose time is stopped."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest
import uvicorn
from structlog.testing import capture_logs

from cohort.process import server as server_module
from cohort.process.server import Server, listen
from cohort.process.service import Service
from cohort.rpc import RpcServer
from cohort.settings import Settings
from tests.e2e.processes import free_port
from tests.waiting import iterations, until


class StillLoop:
    """A loop that calls what is due at once, and keeps what is due later."""

    def __init__(self) -> None:
        self.later: list[tuple[float, Callable[[], None]]] = []

    def call_soon_threadsafe(self, call: Callable[..., object], *args: object) -> None:
        call(*args)

    def call_later(self, seconds: float, call: Callable[[], None]) -> None:
        self.later.append((seconds, call))


class Recorder:
    """A service with only the parts that the server uses, which records the order of calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.draining = False
        self.settings = SimpleNamespace(
            drain_notice_seconds=5.0, drain_seconds=30, host="127.0.0.1", grpc_port=free_port()
        )
        self.control_plane = self.lifecycle = self
        self.opening = self.reason = ""
        self.files = SimpleNamespace(watch=SimpleNamespace(look_now=list))

    def begin_draining(self) -> None:
        self.draining = True

    def readiness(self) -> SimpleNamespace:
        return SimpleNamespace(reason=self.reason)


async def application(scope: object, receive: object, send: object) -> None:
    """An application that is never called."""


def make(recorder: Recorder, protocol: object = "auto") -> Server:
    """Return a server that does not listen yet."""
    config = uvicorn.Config(
        application,
        http=protocol,  # type: ignore[arg-type]
        log_config=None,
        lifespan="off",
        timeout_graceful_shutdown=30,
    )
    return Server(config, cast(Service, recorder))


# -- signals


def test_the_first_signal_starts_the_notice_period() -> None:
    """Readiness fails at once; the listeners stay open until the notice has ended."""
    recorder, loop = Recorder(), StillLoop()
    server = make(recorder)
    server._loop = cast(asyncio.AbstractEventLoop, loop)
    server.handle_exit(signal.SIGTERM, None)
    assert recorder.draining
    ((seconds, end_notice),) = loop.later
    assert (seconds, server.should_exit) == (5.0, False)
    end_notice()
    assert server.should_exit
    assert not server.force_exit


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_the_second_signal_ends_the_process(first: signal.Signals, second: signal.Signals) -> None:
    """The process ends at once; its status contains the signal."""
    recorder, loop = Recorder(), StillLoop()
    server = make(recorder)
    server._loop = cast(asyncio.AbstractEventLoop, loop)
    server.handle_exit(first, None)
    with mock.patch("os._exit") as exited:
        server.handle_exit(second, None)
    exited.assert_called_once_with(128 + second)


def test_ctrl_c_needs_no_notice() -> None:
    """A person at a terminal does not wait."""
    recorder, loop = Recorder(), StillLoop()
    server = make(recorder)
    server._loop = cast(asyncio.AbstractEventLoop, loop)
    server.handle_exit(signal.SIGINT, None)
    assert (recorder.draining, loop.later) == (True, [])
    assert (server.should_exit, server.force_exit) == (True, False)


def test_a_signal_before_the_loop_runs_ends_the_start() -> None:
    """There is nothing to give notice of."""
    recorder = Recorder()
    server = make(recorder)
    server.handle_exit(signal.SIGTERM, None)
    assert (recorder.draining, server.should_exit) == (True, True)


# -- shutdown


class Rpc:
    """A gRPC server that records its stop."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def end_reading(self) -> None:
        self._recorder.calls.append("rpc reads no more")

    async def stop(self, grace: float) -> None:
        self._recorder.calls.append(f"rpc within {grace:g} s")


async def shut_down(server: Server, recorder: Recorder, *listeners: socket.socket) -> None:
    """Run the shutdown, up to where uvicorn's own begins."""

    async def uvicorns(self: object, sockets: object = None) -> None:
        recorder.calls.append("uvicorn")

    with mock.patch.object(uvicorn.Server, "shutdown", uvicorns):
        await server.shutdown(list(listeners))


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


async def test_listeners_close_first_and_the_application_last(recorder: Recorder) -> None:
    """gRPC has ended before uvicorn ends the lifespan, and with it the models."""
    server = make(recorder)
    server._rpc = cast(RpcServer, Rpc(recorder))
    (listener,) = listen(Settings(port=0))
    listener.setblocking(False)
    own = mock.Mock(close=lambda: recorder.calls.append("listener"))
    server.servers = [own]
    await shut_down(server, recorder, listener)
    assert recorder.calls == ["listener", "rpc reads no more", "rpc within 30 s", "uvicorn"]
    assert listener.fileno() == -1, "closed"


async def test_connections_in_the_kernels_queue_are_accepted_before_it_closes(
    recorder: Recorder,
) -> None:
    """Closing a listener resets connections that were not accepted."""
    made: list[str] = []

    class Accepted(asyncio.Protocol):
        def __init__(self, **_: object) -> None:
            super().__init__()

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.append("connection")
            transport.close()

    server = make(recorder, Accepted)
    server.config.http_protocol_class = Accepted
    server.lifespan = cast(Any, SimpleNamespace(state={}))
    server.servers = []
    (listener,) = listen(Settings(port=0))
    listener.setblocking(False)
    callers = [socket.create_connection(listener.getsockname()) for _ in range(3)]
    await shut_down(server, recorder, listener)
    assert made == ["connection"] * 3
    for caller in callers:
        caller.close()


async def test_open_connections_may_send_a_last_request(recorder: Recorder) -> None:
    """The shutdown continues once the last of them has closed."""
    server = make(recorder)
    server.servers = []
    connection = cast(Any, object())
    server.server_state.connections.add(connection)

    def close() -> None:
        recorder.calls.append("connection")
        server.server_state.connections.discard(connection)

    asyncio.get_running_loop().call_soon(close)
    await shut_down(server, recorder)
    assert recorder.calls == ["connection", "uvicorn"]


async def test_a_connection_that_stays_open_does_not_hold_up_the_shutdown(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uvicorn ends it, within what is left of the time to drain."""
    monkeypatch.setattr(server_module, "LAST_REQUEST_SECONDS", 0.0)
    server = make(recorder)
    server._rpc = cast(RpcServer, Rpc(recorder))
    server.servers = []
    server.server_state.connections.add(cast(Any, object()))
    await shut_down(server, recorder)
    assert recorder.calls[-1] == "uvicorn"
    assert server.config.timeout_graceful_shutdown is not None
    assert 0 <= server.config.timeout_graceful_shutdown <= 30


async def test_without_grpc_the_last_requests_are_part_of_the_time_to_drain(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A balancer's time limit for a stop counts all of it."""
    server = make(recorder)
    server.servers = []
    server.server_state.connections.add(cast(Any, object()))
    monkeypatch.setattr(server_module, "monotonic", count().__next__)  # a second for each look
    await shut_down(server, recorder)
    assert server.config.timeout_graceful_shutdown == 30 - 3


async def test_grpc_opens_when_all_else_is_ready_and_stops_without_http(recorder: Recorder) -> None:
    """It must not keep the process alive if HTTP could not start."""
    rpc = Rpc(recorder)

    async def start(service: object, worker: object) -> Rpc:
        recorder.calls.append("rpc opens")
        return rpc

    async def fail(self: object, sockets: object = None) -> None:
        recorder.reason = "loading models"
        await iterations()
        assert (recorder.calls, recorder.opening) == ([], "the port for gRPC is not open yet")
        recorder.reason = recorder.opening
        await until(lambda: not recorder.opening)
        raise OSError("cannot listen")

    server = make(recorder)
    with (
        mock.patch.object(server_module, "_start_rpc", start),
        mock.patch.object(uvicorn.Server, "serve", fail),
        pytest.raises(OSError, match="cannot listen"),
    ):
        await server.serve([])
    assert recorder.calls == ["rpc opens", "rpc within 0 s"]


# -- listening


def test_a_free_port_is_listened_on() -> None:
    """Port 0 chooses one; the log contains it."""
    with capture_logs() as logs:
        (listener,) = listen(Settings(port=0))
    with listener:
        assert logs[-1]["event"] == "listening for HTTP"
        assert logs[-1]["port"] == listener.getsockname()[1]


def test_a_port_in_use_ends_the_process_with_advice() -> None:
    """The reason is logged; no traceback."""
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        capture_logs() as logs,
        pytest.raises(SystemExit) as exit_info,
    ):
        listen(Settings(port=taken.getsockname()[1]))
    assert exit_info.value.code == 1
    assert logs[-1]["reason"].endswith(
        ": address already in use; choose another port with --port or COHORT_PORT"
    )


def test_any_other_failure_to_listen_is_told_in_the_systems_words() -> None:
    """Such as a port that needs a privilege."""
    refused = PermissionError(errno.EACCES, "Permission denied")
    with (
        mock.patch.object(socket.socket, "bind", side_effect=refused),
        capture_logs() as logs,
        pytest.raises(SystemExit),
    ):
        listen(Settings(port=80))
    assert logs[-1]["reason"] == "cannot listen on 127.0.0.1:80: Permission denied"
