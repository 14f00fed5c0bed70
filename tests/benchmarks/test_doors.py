"""What the callers of the doors send, and how what was measured becomes a table."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from time import perf_counter

import pytest

from benchmarks import callers, doors
from benchmarks.callers import CALLERS, Plan
from benchmarks.doors import COLUMNS, Figures
from benchmarks.programs import heard_by_ab

BODY = b'{"input": [[1, 2]]}'


class Server(socketserver.ThreadingTCPServer):
    """Answers each whole request, and notes what each read gave and how many connections came."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.reads: list[bytes] = []
        self.read = threading.Event()
        self.connections = 0
        self.answers = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/predict"


class Answering(socketserver.BaseRequestHandler):
    server: Server

    def handle(self) -> None:
        self.server.connections += 1
        while data := self.request.recv(65536):
            self.server.reads.append(data)
            self.server.read.set()
            if data.endswith(BODY):
                self.server.answers += 1
                self.request.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> float:
    """A time until which a caller that looks at the clock goes round once."""
    monkeypatch.setattr(callers, "perf_counter", iter([0.0, 2.0]).__next__)
    return 1.0


def test_a_body_apart_follows_once_its_head_was_read(
    server: Server, once: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server gets them in two reads."""
    monkeypatch.setattr(callers, "sleep", lambda _: server.read.wait(30))
    assert callers.split(Plan(server.url, BODY, 1, once)) == 1
    head, body = server.reads
    assert head.endswith(f"Content-Length: {len(BODY)}\r\n\r\n".encode())
    assert body == BODY


def test_opening_has_a_connection_for_each_request(server: Server, once: float) -> None:
    """Each of them sends head and body at once."""
    assert callers.opening(Plan(server.url, BODY, 3, once)) == 3
    assert server.connections == 3
    assert all(read.startswith(b"POST ") and read.endswith(BODY) for read in server.reads)


@pytest.mark.parametrize("name", CALLERS)
def test_every_caller_counts_what_was_answered(server: Server, name: str) -> None:
    """By the end of its time it has received each answer."""
    if name not in {"split", "opening"}:
        pytest.importorskip(name)
    count = CALLERS[name](Plan(server.url, BODY, 2, perf_counter() + 0.2))
    assert count == server.answers


AB = """
Server Hostname:        127.0.0.1
Time taken for tests:   2.000 seconds
Complete requests:      4321
Failed requests:        0
Requests per second:    2160.50 [#/sec] (mean)
"""


def test_what_ab_prints_is_read() -> None:
    """The numbers of answers and seconds are read from its output."""
    assert heard_by_ab(AB) == {"requests": 4321, "seconds": 2.0}


@pytest.mark.parametrize(
    "told",
    [AB.replace("Failed requests:        0", "Failed requests:        3"),
     AB + "Non-2xx responses:      4321\n", ""],
    ids=["failed", "refused", "silent"],
)  # fmt: skip
def test_ab_whose_requests_failed_is_an_error(told: str) -> None:
    """A figure of refused requests would be wrong."""
    with pytest.raises(RuntimeError, match="ab"):
        heard_by_ab(told)


def test_the_table_has_what_was_measured_and_says_what_was_not() -> None:
    """Medians and ranges over the rounds; a door that was left out has its reason below."""
    found = {("plain", "cohort"): Figures(), ("Go", "cohort"): Figures(failed="no go")}
    for cpu_us in (10.0, 30.0, 20.0):
        heard = {"requests": 4000, "seconds": 2.0, "cpu_us": cpu_us, "hot": 1.0, "rows": 8.0,
                 "foreign": 0.5}  # fmt: skip
        found["plain", "cohort"].add(heard, {"cpu_us": 10.0}, paced=40.0)
    plain, go = doors.cells(found)
    assert plain == [
        "plain", "cohort", "20.0", "10.0 to 30.0", "2.00", "1.00 to 3.00", "0.50", "2,000", "8.0",
        "100%", "0.50",
    ]  # fmt: skip
    assert len(plain) == len(go) == len(COLUMNS)
    assert go[2] == "left out"
    assert list(doors.reasons(found)) == ["Go, cohort, is left out: no go"]
    assert "3 of 3 measurements" in doors.summed_up(found, 3, 2.0)
