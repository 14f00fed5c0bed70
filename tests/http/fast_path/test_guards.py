"""Limits that keep one caller from harming the others on the fast path.

Most tests use the protocol itself, with a fake transport and data plane; the rest use a real
server.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any
from unittest import mock

import pytest
from structlog.testing import capture_logs

from cohort.codec.codec_thread import codec_thread
from cohort.errors import Cancelled, Overloaded
from cohort.http.calls import Route
from cohort.http.fast_path import shared
from cohort.http.fast_path.cycle import HotCycle
from cohort.http.fast_path.idle import bytes_in_kernel
from cohort.http.fast_path.protocol import HotProtocol
from cohort.http.fast_path.shared import MAX_READ_AHEAD_BYTES, MAX_ROUTE_BYTES, SWEPT_AT_ONCE, Hot
from cohort.http.guards.limits import REFUSED_LINGER_SECONDS
from tests import onnx_models
from tests.e2e import counted
from tests.e2e.endless import endless_runs, in_progress
from tests.e2e.processes import Cohort, cohort
from tests.e2e.scrape import Scrape
from tests.http.fakes import FakeLease, FakeServer, asgi, hot, read
from tests.http.wire import LAST, Answer, answers, chunked, connect, exchange, read_all, request
from tests.waiting import PATIENCE, iterations, until, wait_until

# ---- order


async def test_responses_keep_the_order_of_requests() -> None:
    """One request of a connection runs at a time; the next starts when it is answered."""
    server = FakeServer()
    server.send(hot(b"1") + asgi(b"2") + hot(b"bad") + hot(b"3") + asgi(b"4"))
    await iterations()
    assert [lease.inputs for lease in server.plane.waiting] == [b"1"]
    assert server.transport.written == b""
    await server.answer_all()
    bodies = [one.body for one in server.transport.answers]
    assert bodies[:2] + bodies[3:] == [b"1", b"2", b"3", b"4"]
    assert server.transport.answers[2].code == "InvalidInput"


async def test_an_early_refusal_is_sent_in_order() -> None:
    """A body over the limit is refused at once, and answered after all earlier requests."""
    server = FakeServer(max_body=10)
    server.send(hot(b"1") + hot(b"", "content-length: 11") + b"more of it")
    assert server.transport.written == b""
    await server.answer_all()
    assert [one.code for one in server.transport.answers[1:]] == ["TooLarge"]
    assert server.transport.answers[0].body == b"1"
    assert server.transport.closes()


async def test_requests_after_the_last_one_are_not_run() -> None:
    """Requests after one that ends the connection never reach a model."""
    server = FakeServer(max_body=10)
    server.send(hot(b"x" * 11) + hot(b"2") + hot(b"3"))
    server.send(hot(b"4"))
    await iterations()
    assert server.plane.waiting == []
    assert [one.code for one in server.transport.answers] == ["TooLarge"]


async def test_a_request_after_the_last_one_is_not_an_error() -> None:
    """This holds also after an upgrade request, whose next bytes a new parser reads."""
    for headers in (["connection: close"], ["connection: upgrade, close", "upgrade: h2c"]):
        server = FakeServer()
        with capture_logs() as logged:
            server.send(hot(b"1", *headers) + hot(b"2"))
            await server.answer_all()
        assert [one.body for one in server.transport.answers] == [b"1"]
        assert logged == []


async def test_a_malformed_request_on_uvicorns_path_is_refused_in_order() -> None:
    """The application sees a disconnect, and the caller gets the error."""
    server = FakeServer()
    broken = request("/asgi", b"zz\r\n", "transfer-encoding: chunked")
    server.send(hot(b"1") + broken)
    await server.answer_all()
    assert [one.status for one in server.transport.answers] == [200, 400]
    server.connect()
    server.send(broken[:-4])
    await iterations()
    server.send(b"zz\r\n")
    await iterations()
    assert [one.status for one in server.transport.answers] == [400]
    assert server.state["gone"] == ["/asgi"]
    assert server.transport.closes()


async def test_nothing_is_sent_after_the_last_response() -> None:
    """The rest of a refused body is read and discarded until the caller closes."""
    server = FakeServer(max_body=10)
    server.send(hot(b"", "content-length: 1000000") + b"a" * 100)
    assert [one.code for one in server.transport.answers] == ["TooLarge"]
    server.send(b"a" * 100_000, hot(b"2"), asgi(b"3"))
    await iterations()
    assert len(server.transport.answers) == 1
    assert server.plane.waiting == []
    assert server.transport.reads()


def test_a_caller_that_sends_too_much_gets_413(tmp_path: Path) -> None:
    """A client that writes its whole request before it reads gets the 413, not a reset."""
    onnx_models.save(onnx_models.mlp(), tmp_path / "models/mlp/1/model.onnx")
    with cohort(tmp_path / "models", tmp_path, max_body_mb="1") as server:

        def ask() -> list[str] | None:
            """Return the codes of the answers, or None if a stall used up the time."""
            began, received = monotonic(), b""
            with connect(server.url) as caller, contextlib.suppress(ConnectionError):
                caller.sendall(request("/predict", b" " * 8_000_000))
                received = read_all(caller)
            late = monotonic() - began > REFUSED_LINGER_SECONDS
            return None if late and not received else [one.code for one in answers(received)]

        found = [ask() for _ in range(10)]
        assert ["TooLarge"] in found
        assert all(one in (["TooLarge"], None) for one in found)


# ---- bounds


@pytest.mark.parametrize("size", [1, 2, 100, 5000])
async def test_a_body_in_small_parts_takes_little_more_memory_than_its_bytes(size: int) -> None:
    """Any division works up to the limit; beyond it the parts are released."""
    server = FakeServer(max_body=300_000)
    part, body = b"x" * size, 0
    server.send(hot(b"", "transfer-encoding: chunked"))
    while body + size <= 300_000:
        server.send(b"%x\r\n%b\r\n" % (size, part))
        body += size
    parts = server.protocol.cycle._parts
    assert sum(map(len, parts)) == body
    assert len(parts) < 100
    server.send(b"%x\r\n%b\r\n" % (size, part))
    assert not server.protocol.cycle._parts
    assert server.transport.answers[0].code == "TooLarge"
    assert server.transport.closes()


async def test_headers_are_limited_however_they_are_split() -> None:
    """Their own size counts, not that of the body that came with them."""
    for size, status in ((60_000, 200), (66_000, 413)):
        sent = hot(b"1", f"x: {'a' * size}")
        for cut in (1, 30, 59_000, len(sent) - 3):
            server = FakeServer()
            server.send(sent[:cut], sent[cut:])
            await server.answer_all()
            assert [one.status for one in server.transport.answers] == [status], cut
    server = FakeServer()
    many = hot(b"1") * 5000
    server.send(many[:-30], many[-30:])
    await server.answer_all()
    assert len(server.transport.answers) == 5000
    assert not server.transport.closes()


async def test_unlimited_blank_lines_and_trailers_are_refused() -> None:
    """Input that is neither headers nor a body is also limited."""
    for start in (b"", request("/hot", chunked(b"1")[:-2] + b"x: ", "transfer-encoding: chunked")):
        server = FakeServer()
        server.send(start)
        for _ in range(100):
            server.send((b"a" if start else b"\r\n") * 1000)
        await server.answer_all()
        assert [one.code for one in server.transport.answers] == ["TooLarge"]


async def test_reading_ahead_is_limited_and_resumes_after_a_response() -> None:
    """A client that pipelines faster than it is answered is read only so far."""
    server = FakeServer()
    one = hot(b"x" * 1000)
    sent = 0
    while server.transport.reads() and sent < 1000:
        server.send(one)
        sent += 1
    assert MAX_READ_AHEAD_BYTES // len(one) < sent < MAX_READ_AHEAD_BYTES // len(one) + 3
    await server.answer_all()
    assert len(server.transport.answers) == sent
    assert server.transport.reads()
    server.send(one, one)
    assert server.transport.reads(), "it starts to count anew"


async def test_a_head_that_is_looked_up_counts_as_read_ahead() -> None:
    """It counts also if the body comes in the next segment: its head is kept."""
    server = FakeServer()
    server.send(hot(b"x", "x-trace: 1"), hot(b"x", "x-trace: 2"))
    await server.answer_all()
    server.send(hot())
    sent = 0
    while server.transport.reads() and sent < 100:
        server.send(hot(b"x", f"x-trace: {sent:05000}")[:-1], b"x")
        sent += 1
    assert sent * 5000 < MAX_READ_AHEAD_BYTES + 10_000


async def test_a_caller_that_does_not_read_is_paused() -> None:
    """Its requests are not read or run until it has read its responses; then they run in order."""
    server = FakeServer()
    server.send(hot(b"1") + hot(b"2") + asgi(b"3") + hot(b"4"))
    server.protocol.pause_writing()
    server.plane.waiting[0].answer()
    await iterations()
    assert len(server.plane.waiting) == 1
    assert not server.transport.reads()
    server.protocol.resume_writing()
    assert server.transport.reads()
    server.protocol.pause_writing()
    server.protocol.resume_writing()
    await iterations()
    assert len(server.plane.waiting) == 2, "the next is started once"
    await server.answer_all()
    assert [one.body for one in server.transport.answers] == [b"1", b"2", b"3", b"4"]


async def test_requests_on_uvicorns_path_keep_the_read_ahead_limit() -> None:
    """They keep it also if the application asks for more of its body."""
    server = FakeServer()
    server.state["gate"] = asyncio.get_running_loop().create_future()
    for _ in range(100):
        server.send(asgi(b"x" * 1000))
        await iterations(2)
    assert not server.transport.reads()
    server.state["gate"].set_result(None)
    server.state["gate"] = None
    await until(lambda: len(server.transport.answers) == 100)
    assert server.transport.reads()


async def test_the_next_request_is_read_while_its_body_is_incomplete() -> None:
    """A half-read request that comes to the front gets the rest of its body on either path."""
    for second in (hot, asgi):
        server = FakeServer(max_body=2**20)
        sent = second(b"y" * 90_000)
        server.send(hot(b"1") + sent[:80_000])
        assert not server.transport.reads()
        server.plane.waiting[0].answer()
        await iterations()
        assert server.transport.reads()
        server.send(sent[80_000:])
        await server.answer_all()
        assert server.transport.answers[1].body == b"y" * 90_000


# ---- idle connections


async def test_idle_connections_are_closed() -> None:
    """A connection is idle before a request, between two, within one, and without any."""
    for sent in (b"", hot(b"bad"), hot()[:10], hot(b"12")[:-1], asgi(b"12")[:-1], asgi(b"12")):
        server = FakeServer(keep_alive=10)
        server.send(sent)
        await iterations()
        server.sweep(after=9)
        assert not server.transport.closes()
        server.sweep(after=11)
        assert server.transport.closes(), sent


async def test_connections_with_slow_headers_are_closed() -> None:
    """Headers that arrive byte by byte do not hold a connection indefinitely."""
    server = FakeServer(keep_alive=1000)
    server.send(b"POST /hot HTTP/1.1\r\n")
    server.sweep(after=29)
    assert not server.transport.closes()
    server.sweep(after=31)
    assert server.transport.closes()


async def test_a_connection_that_waits_for_a_response_is_not_idle() -> None:
    """It is not idle with half a request after it; the response restarts the idle time."""
    for first in (hot, asgi):
        server = FakeServer(keep_alive=10)
        server.state["gate"] = asyncio.get_running_loop().create_future()
        server.send(first(b"1") + hot(b"2")[:-1])
        await iterations()
        server.sweep(after=1000)
        server.sweep(after=1009)
        assert not server.transport.closes()
        server.state["gate"].set_result(None)
        await server.answer_all()
        server.sweep(after=1011)
        assert server.transport.closes(), "now it is idle"


async def test_a_slow_reader_is_not_idle_and_one_that_stops_is_aborted() -> None:
    """Progress is seen by the bytes that are still unsent."""
    server = FakeServer(keep_alive=10)
    for unsent in (300_000, 200_000, 100_000):
        server.transport.unsent = unsent
        server.sweep(after=11 * (3 - unsent // 100_000))
        assert not server.transport.closes()
    server.sweep(after=40)
    assert server.transport.closes()
    assert not server.transport.aborts()
    server.sweep(after=50)
    assert server.transport.aborts()


async def test_what_is_read_out_of_the_kernel_is_progress() -> None:
    """It takes megabytes at once: while a slow caller reads them, the process sends nothing."""
    server = FakeServer(keep_alive=1000)
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as caller:
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        caller.connect(listener.getsockname())
        sending, _ = listener.accept()
        with sending:
            sending.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    sending.send(b"x" * 65536)
            server.transport.socket, server.transport.unsent = sending, 1_000_000
            server.sweep(after=1)
            for after in (25, 50):
                before = bytes_in_kernel(server.transport)
                while bytes_in_kernel(server.transport) > before - 2**17:
                    caller.recv(65536)
                server.sweep(after=after)
                assert not server.transport.aborts()
            server.sweep(after=75)
            assert server.transport.aborts(), "nothing was read"


def test_the_sweep_looks_at_some_connections_in_each_iteration() -> None:
    """Each connection is checked once, except those that end before; then the sweep waits."""
    looked_at: list[mock.Mock] = []
    connections = set()
    for _ in range(2 * SWEPT_AT_ONCE + 50):
        one = mock.Mock()
        one.close_if_idle = mock.Mock(side_effect=lambda _, one=one: looked_at.append(one))
        connections.add(one)
    loop = mock.Mock(time=lambda: 7.0)
    hot = Hot(
        mock.Mock(), mock.Mock(), matches=[], max_body=1, keep_alive=10, max_connections=10_000
    )
    hot.watch(connections, loop)
    hot.watch(connections, loop)
    ((_, sweep, *arguments),) = [one.args for one in loop.call_later.call_args_list]
    sweep(*arguments)
    assert len(looked_at) == SWEPT_AT_ONCE
    left = connections - set(looked_at)
    gone = left.pop()
    connections.remove(gone)
    while loop.call_soon.call_args_list:
        ((look, *arguments),) = [one.args for one in loop.call_soon.call_args_list]
        loop.call_soon.reset_mock()
        before = len(looked_at)
        look(*arguments)
        assert len(looked_at) - before <= SWEPT_AT_ONCE
    assert len(looked_at) == len(connections)
    assert set(looked_at) == connections
    looked_at[-1].close_if_idle.assert_called_once_with(7.0)
    assert loop.call_later.call_count == 2


def test_the_sweep_ends_with_the_last_connection() -> None:
    """Without connections the sweep does not wait again, until one opens."""
    loop = mock.Mock(time=lambda: 7.0)
    hot = Hot(
        mock.Mock(), mock.Mock(), matches=[], max_body=1, keep_alive=10, max_connections=10_000
    )
    hot.watch([], loop)
    ((_, sweep, *arguments),) = [one.args for one in loop.call_later.call_args_list]
    sweep(*arguments)
    assert loop.call_later.call_count == 1
    hot.watch([], loop)
    assert loop.call_later.call_count == 2


def test_the_sweep_runs_on_a_real_server(tmp_path: Path) -> None:
    """Idle and half-sent connections end after COHORT_KEEP_ALIVE_SECONDS.

    Each is read until the server closes it.
    """
    models = tmp_path / "models"
    onnx_models.save(onnx_models.mlp(), models / "mlp/1/model.onnx")
    body = request("/predict", QUICK)
    with cohort(models, tmp_path, keep_alive_seconds=1) as server, contextlib.ExitStack() as stack:
        idle, half = (stack.enter_context(connect(server.url)) for _ in range(2))
        with contextlib.suppress(OSError):  # a machine may stall for longer than that second
            half.sendall(body[:-1])
        assert read_all(idle) == b""
        assert read_all(half) == b""

        def answered() -> list[str]:
            with connect(server.url) as caller, contextlib.suppress(OSError):
                caller.sendall(body)
                return [one.code for one in answers(read_all(caller))]
            return []

        assert wait_until(answered) == ["OK"]


# ---- leaving


async def test_all_requests_of_a_lost_connection_are_cancelled() -> None:
    """The one in progress is cancelled and counted once; those behind it never run."""
    server = FakeServer()
    server.send(hot(b"1") + hot(b"2") + asgi(b"3"))
    (lease,) = server.plane.waiting
    server.lose()
    await iterations()
    assert lease.left
    assert [type(error) for error in lease.closed] == [Cancelled]
    assert len(server.plane.waiting) == 1
    assert server.transport.written == b""


async def test_the_application_sees_a_disconnect_with_requests_behind_it() -> None:
    """uvicorn itself notifies only the request that was read last."""
    server = FakeServer()
    server.state["gate"] = asyncio.get_running_loop().create_future()
    server.send(asgi(b"1") + hot(b"2"))
    await iterations()
    server.lose()
    await iterations()
    assert server.state["gone"] == ["/asgi"]
    assert server.plane.waiting == []


async def test_a_disconnect_is_noticed_with_requests_behind() -> None:
    """A few pipelined requests do not stop the reading, by which a disconnect is noticed."""
    server = FakeServer()
    server.send(hot(b"1") + asgi(b"2") + hot(b"3"))
    assert server.transport.reads()


async def test_a_large_body_of_a_lost_connection_is_not_parsed() -> None:
    """It is not parsed if its connection is lost while it waits for the codec thread."""
    server = FakeServer()
    gate = threading.Event()
    blocked = codec_thread.first_stage.submit(gate.wait)
    try:
        server.send(hot(b"x" * 200_000))
        server.lose()
    finally:
        gate.set()
    await asyncio.wrap_future(blocked)
    await asyncio.get_running_loop().run_in_executor(codec_thread.first_stage, int)
    await iterations()
    assert server.plane.waiting == []
    assert server.plane.reading == 0


async def test_a_large_body_is_read_off_the_loop() -> None:
    """Requests of other connections are answered as long as it is being read."""
    server = FakeServer()
    gate = threading.Event()
    codec_thread.first_stage.submit(gate.wait)
    try:
        server.send(hot(b"x" * 200_000))
        large = server.transport
        for path in (hot, asgi):
            server.connect()
            server.send(path(b"2"))
            await server.answer_all()
            assert [one.status for one in server.transport.answers] == [200]
        assert large.written == b""
    finally:
        gate.set()

    async def answered() -> bool:
        await server.answer_all()
        return bool(large.written)

    await until(answered)
    assert [one.status for one in large.answers] == [200]


async def test_large_bodies_that_wait_for_the_codec_thread_are_counted() -> None:
    """They count as in progress, and one above the limit is refused at once."""
    server = FakeServer()
    server.plane.most_read = 1
    gate = threading.Event()
    codec_thread.first_stage.submit(gate.wait)
    try:
        server.send(hot(b"x" * 200_000))
        first = server.transport
        server.connect()
        server.send(hot(b"y" * 200_000))
        assert [one.code for one in server.transport.answers] == ["Overloaded"]
    finally:
        gate.set()
    await until(lambda: server.plane.waiting)
    await server.answer_all()
    assert [one.status for one in first.answers] == [200]
    assert (server.plane.reading, server.plane.refusals) == (0, ["Overloaded"])


async def test_a_large_body_that_is_refused_is_counted_as_refused() -> None:
    """It counts like a small one, though it was read on the codec thread."""
    server = FakeServer()
    server.send(hot(b"bad".ljust(200_000)))
    await until(lambda: server.transport.written)
    assert [one.code for one in server.transport.answers] == ["InvalidInput"]
    assert server.plane.refusals == ["InvalidInput"]


async def test_later_stages_run_before_first_stages() -> None:
    """A parsed body takes several times its size until it is an array."""
    order: list[str] = []
    busy, gate = threading.Event(), threading.Event()

    def block() -> None:
        busy.set()
        gate.wait()

    blocked = codec_thread.first_stage.submit(block)
    assert busy.wait(PATIENCE)  # else the later stages go before it
    rest = [
        *(codec_thread.first_stage.submit(order.append, f"first {number}") for number in range(3)),
        *(codec_thread.later_stage.submit(order.append, f"later {number}") for number in range(2)),
    ]
    cancelled = codec_thread.later_stage.submit(order.append, "given up")
    assert cancelled.cancel()
    failing = codec_thread.first_stage.submit(int, "x")
    gate.set()
    await asyncio.wrap_future(blocked)
    for work in rest:
        await asyncio.wrap_future(work)
    assert order == ["later 0", "later 1", "first 0", "first 1", "first 2"]
    with pytest.raises(ValueError, match="invalid literal"):
        await asyncio.wrap_future(failing)


# ---- errors and the end


@pytest.mark.parametrize("body", [b"bug", b"unwritable"])
async def test_a_bug_is_a_500_and_is_logged(body: bytes) -> None:
    """The response does not describe it, and the connection stays open."""
    server = FakeServer()
    with capture_logs() as logged:
        server.send(hot(body) + hot(b"2"))
        await server.answer_all()
    first, second = server.transport.answers
    assert (first.status, first.json) == (
        500,
        {"error": "the server failed; its log has the cause", "code": "InferenceFailed"},
    )
    assert second.body == b"2"
    assert [(one["log_level"], type(one["exc_info"])) for one in logged] == [
        ("error", ZeroDivisionError)
    ]


async def test_a_bug_in_a_parser_callback_is_a_500(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not reported as malformed HTTP."""
    server = FakeServer()
    monkeypatch.setattr(server.hot, "matches", [lambda path, query: 1 / 0])
    with capture_logs() as logged:
        server.send(hot())
    assert [one.status for one in server.transport.answers] == [500]
    assert next(type(one["exc_info"]) for one in logged if "exc_info" in one) is ZeroDivisionError


async def test_overload_is_429_and_the_connection_stays_open() -> None:
    """The refusal has Retry-After."""
    server = FakeServer()
    server.plane.error = Overloaded("it is full", retry_after=3)
    server.send(hot(b"1") + hot(b"2"))
    server.plane.error = None
    server.send(hot(b"3"))
    await server.answer_all()
    assert [one.status for one in server.transport.answers] == [429, 429, 200]
    assert server.transport.answers[0].headers["retry-after"] == "3"


async def test_draining_closes_the_connection_with_its_last_response() -> None:
    """All requests read are answered; only the last response has `connection: close`."""
    server = FakeServer()
    server.send(hot(b"1") + hot(b"2"))
    server.draining = True
    await server.answer_all()
    assert ["connection" in one.headers for one in server.transport.answers] == [False, True]
    assert server.transport.closes()


async def test_shutdown_closes_idle_connections_and_waits_for_the_others() -> None:
    """Requests in progress are answered, and their connections closed."""
    server = FakeServer()
    server.send(hot(b"1") + hot(b"2"))
    server.protocol.shutdown()
    assert not server.transport.closes()
    await server.answer_all()
    assert len(server.transport.answers) == 2
    assert server.transport.closes()
    server.connect()
    server.protocol.shutdown()
    assert server.transport.closes()


async def test_a_long_query_is_left_to_fastapi(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not read before it is known whether the caller may ask, nor for a path of others."""
    server = FakeServer()
    assert server.hot.route(b"/hot?a=" + b"a" * 400) is not None
    monkeypatch.setattr(shared, "parse_qsl", None)
    assert server.hot.route(b"/hot?a=" + b"a" * MAX_ROUTE_BYTES) is None


async def test_the_route_cache_is_bounded() -> None:
    """Callers that make up URLs take no memory."""
    server = FakeServer()
    server.hot.matches = [lambda path, query: Route(None, lambda headers: read)]
    for number in range(5000):
        server.hot.route(b"/%d" % number)
    server.hot.route(b"/" + b"a" * 10_000)
    assert len(server.hot._routes) <= 1024
    assert server.hot.route(b"/again") is server.hot.route(b"/again")


async def test_answered_requests_and_lost_connections_leave_no_reference_cycles() -> None:
    """They are freed at once, without the garbage collector."""
    server = FakeServer()

    def alive() -> tuple[int, int, int]:
        """Return how many requests, connections and leases of this server are alive."""
        found = gc.get_objects()
        connections = [one for one in found if isinstance(one, HotProtocol)]
        ours = [one for one in connections if one.hot is server.hot]
        cycles = [one for one in found if isinstance(one, HotCycle) and one.protocol in ours]
        return len(cycles), len(ours), len([one for one in found if isinstance(one, FakeLease)])

    gc.collect()
    gc.disable()
    try:
        before = alive()
        for number in range(300):
            server.send(hot(b"%d" % number) + hot(b"bad") + hot(b"2", "x: y"))
            await server.answer_all()
            server.plane.waiting.clear()
        assert alive() == (1, 1, before[2])  # the request that was answered last
        for _ in range(100):
            server.lose()
            server.connect()
            server.send(hot(b"1") + hot(b"2")[:-1])
        server.plane.waiting.clear()
        server.lose()
        server.connect()
        await iterations()
        assert alive() == (0, 1, before[2])
    finally:
        gc.enable()


# ---- on a real server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """A slow model, a quick one, and one that gives back what it gets."""
    folder = tmp_path_factory.mktemp("guards")
    onnx_models.save(onnx_models.loop(), folder / "models/slow/1/model.onnx")
    (folder / "models/slow/config.yaml").write_text("timeout_ms: 600000\n")
    onnx_models.save(onnx_models.mlp(), folder / "models/mlp/1/model.onnx")
    onnx_models.save(onnx_models.identity("FP32", ["N"]), folder / "models/echo/1/model.onnx")
    with cohort(folder / "models", folder, max_concurrency=2, watch_seconds=0) as started:
        yield started


ENDLESS = {"inputs": {"n": [[onnx_models.FOREVER]]}}
QUICK = {"inputs": {"x": [[0.1, 0.2, 0.3, 0.4]]}}


def resident(server: Cohort, name: str = "VmRSS") -> float:
    """Memory of the server in MB."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.split(f"{name}:")[1].split()[0]) / 1024


def test_requests_over_the_concurrency_limit_get_429(server: Cohort) -> None:
    """They get it until one of the COHORT_MAX_CONCURRENCY requests in progress ends."""
    quick = [request("/models/mlp/predict", QUICK, "connection: close")]
    with endless_runs(server, "slow", count=2) as callers:
        (refused,) = exchange(server.url, quick, last=None)
        assert (refused.status, refused.code) == (429, "Overloaded")
        assert int(refused.headers["retry-after"]) >= 1
        callers[0].close()
        wait_until(lambda: in_progress(server, "slow") == 1)
        assert exchange(server.url, quick, last=None)[0].code == "OK"


def test_pipelined_requests_of_a_lost_connection_are_cancelled(server: Cohort) -> None:
    """The one in progress is cancelled and counted, those behind it never run."""
    name = "model_cancelled_total"
    before = Scrape(server.url)
    with connect(server.url) as caller:
        caller.sendall(request("/models/slow/predict", ENDLESS) * 5)
        wait_until(lambda: Scrape(server.url).value("model_inflight_requests", model="slow") == 1)
    wait_until(
        lambda: Scrape(server.url).value(name, model="slow") == before.value(name, model="slow") + 1
    )
    wait_until(lambda: Scrape(server.url).value("model_inflight_requests", model="slow") == 0)
    answered = "model_inference_total"
    after = Scrape(server.url)
    assert after.value(answered, model="slow") == before.value(answered, model="slow") + 1


def test_a_client_that_does_not_read_is_paused_and_then_served(server: Cohort) -> None:
    """The server stops reading its requests, keeps its memory low, and loses no request."""
    body = json.dumps(
        {"inputs": [{"name": "x", "datatype": "FP32", "shape": [20_000], "data": [0.125] * 20_000}]}
    ).encode()
    sent = request("/v2/models/echo/infer", body)
    exchange(server.url, [sent])
    before = resident(server)
    with connect(server.url) as caller:
        caller.settimeout(2)
        whole, place, held_back = 0, 0, False
        while not held_back and whole * len(sent) < 1200 * 2**20:
            try:
                place += caller.send(sent[place:])
            except TimeoutError:
                held_back = whole > 0
            if place == len(sent):
                whole, place = whole + 1, 0
        assert held_back
        assert resident(server) - before < 100  # MB; without a pause 1200 are sent
        caller.settimeout(PATIENCE)
        rest = threading.Thread(target=lambda: caller.sendall(sent[place:] + LAST))
        rest.start()
        found = answers(read_all(caller))
        rest.join()
    assert [one.status for one in found] == [200] * (whole + 2)
    assert len({one.body for one in found[:-1]}) == 1


def test_bodies_over_the_limit_take_no_memory(tmp_path: Path) -> None:
    """Their parts are released, announced or in chunks, of any size and many at once."""
    models = tmp_path / "models"
    onnx_models.save(onnx_models.mlp(), models / "mlp/1/model.onnx")
    chunk = b"1000\r\n" + b"x" * 4096 + b"\r\n"
    with cohort(models, tmp_path, max_body_mb=4) as server:
        before = resident(server)
        for sent in (
            request("/predict", b"x" * (64 << 20), f"content-length: {2**40}"),
            request("/predict", chunk * 16_384, "transfer-encoding: chunked"),
            request("/predict", b"2\r\nxx\r\n" * 300_000, "transfer-encoding: chunked"),
        ):
            with contextlib.ExitStack() as stack:
                callers = [stack.enter_context(connect(server.url)) for _ in range(8)]
                for caller in callers:
                    with contextlib.suppress(OSError):
                        caller.sendall(sent)
                for caller in callers:
                    with contextlib.suppress(OSError):
                        caller.sendall(LAST)  # what it is in the middle of does not end
        assert exchange(server.url, [request("/predict", QUICK)])[0].code == "OK"
        assert resident(server, "VmHWM") - before < 50  # 1024 MB are sent


STATUS_LINE = b"HTTP/1.1 "


def test_many_requests_do_not_grow_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is as after the first twenty thousand; refused requests are among them.

    Of Python objects there is fewer than one more for ten requests.
    """
    onnx_models.save(onnx_models.mlp(), tmp_path / "models/mlp/1/model.onnx")
    monkeypatch.setenv("BLOCKS_FILE", str(tmp_path / "blocks"))
    batch = (request("/models/mlp/predict", QUICK) * 9 + request("/models/mlp/predict", b"{")) * 50
    file = tmp_path / "blocks"
    with (
        cohort(
            tmp_path / "models",
            tmp_path,
            program=counted.PROGRAM,
            watch_seconds=0,
        ) as server,
        connect(server.url) as caller,
    ):
        for number in range(120):
            caller.sendall(batch)
            begun, end = 0, b""
            while begun < 500:  # the last body's rest comes with the next batch
                received = end + caller.recv(1 << 20)
                assert received != end, "the server closed the connection"
                begun += received.count(STATUS_LINE)
                end = received[-len(STATUS_LINE) + 1 :]
            if number == 40:
                blocks, size = counted.blocks(server, file), resident(server)
        counted.check_blocks(server, file, most=blocks + 4000)
        assert (
            resident(server) - size < 8
        )  # MB: 200 bytes of each, where they are outside of Python objects


async def test_sigterm_under_pipelined_load_loses_no_request(tmp_path: Path) -> None:
    """Every request that was sent is answered, in order, until an answer ends the connection."""
    models = tmp_path / "models"
    onnx_models.save(onnx_models.mlp(), models / "mlp/1/model.onnx")
    depth, batches = 8, [0]
    stopped = threading.Event()

    def load(url: str) -> int:
        """Send batches until the server closes; return the number it answered."""
        count = 0
        while True:
            try:
                caller = connect(url)
            except ConnectionRefusedError:
                return count
            with caller:
                while True:
                    ids = [str(count + number) for number in range(depth)]
                    bodies = [request("/predict", {**QUICK, "id": one}) for one in ids]
                    try:
                        caller.sendall(b"".join(bodies))
                        found, closes = receive(caller, depth)
                    except ConnectionResetError:
                        if not stopped.is_set():
                            raise
                        found, closes = [], True  # the door closed on a connection never accepted
                    assert [one.json["id"] for one in found] == ids[: len(found)]
                    assert len(found) in {0, depth}
                    count += len(found)
                    batches[0] += 1
                    if closes:
                        break

    with cohort(models, tmp_path, drain_notice_seconds=0.5) as server:
        loads = [asyncio.create_task(asyncio.to_thread(load, server.url)) for _ in range(8)]
        await until(lambda: batches[0] > 200)
        stopped.set()
        server.process.send_signal(signal.SIGTERM)
        counts = await asyncio.gather(*loads)
        assert await asyncio.to_thread(server.process.wait, PATIENCE) == 0
    assert sum(counts) >= 200 * depth - depth * 8


def receive(caller: Any, count: int) -> tuple[list[Answer], bool]:
    """Return up to `count` answers, and True if the connection ended."""
    received = b""
    while True:
        part = caller.recv(1 << 16)
        received += part
        ended = not part or b"connection: close" in received
        if ended:
            received += read_all(caller)
        with contextlib.suppress(AssertionError, ValueError, KeyError):
            found = answers(received)
            if len(found) == count or ended:
                return found, ended
        assert not ended, received
