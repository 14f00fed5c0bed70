"""Requests that the shipped balancers let through, and their answers without a ready replica."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Event

import pytest

from tests.deploy.balancers import Start, answering, haproxy, nginx
from tests.waiting import PATIENCE, wait_until

both = pytest.mark.parametrize("start", [nginx, haproxy])

ADMIN = (
    "/admin/rollouts/x/rollback",
    "/%61dmin/rollouts/x/rollback",
    "/admin%2Frollouts/x/rollback",
    "//admin/rollouts/x/rollback",
    "/./admin/rollouts/x/rollback",
    "/ADMIN/rollouts/x/rollback",
    "/v2/repository/models/x/unload",
    "/v2/%72epository/models/x/unload",
    "/v2%2frepository/models/x/unload",
    "/v2//repository/models/x/unload",
)
METRICS = (
    "/metrics",
    "/%6detrics",
    "//metrics",
    "/./metrics",
    "/metrics/",
    "/metrics?x",
    "/METRICS",
)


@contextmanager
def replica(
    *, ready: int = 200, answer: int = 200, seconds: float = 0.0, held: int = 1
) -> Iterator[tuple[int, list[str]]]:
    """One that gives each POST `answer`, after `seconds` and `held` of them; its port, and what it
    was asked.
    """
    asked: list[str] = []
    enough = Event()

    class Answer(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if self.path != "/health/ready":
                asked.append(self.path)
            self.answer(ready)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            asked.append(self.path)
            if len(asked) >= held:
                enough.set()
            enough.wait(PATIENCE)
            Event().wait(seconds)
            self.answer(answer)

        def answer(self, status: int) -> None:
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with answering(Answer) as port:
        yield port, asked


@both
def test_a_path_is_read_as_cohort_reads_it(start: Start, tmp_path: Path) -> None:
    """In any spelling, admin requests are sent once, and metrics are not passed on."""
    with replica(answer=503) as (port, asked), start([port] * 3, tmp_path) as balancer:
        for path in ADMIN:
            asked.clear()
            assert post(balancer.port, path) == 503
            assert len(asked) == 1, path
        asked.clear()
        for path in METRICS:
            assert get(balancer.port, path) == 404, path
        assert asked == []


def post(port: int, path: str) -> int:
    """The status of a POST to this very path."""
    return send(port, "POST", path)


def get(port: int, path: str) -> int:
    """The status of a GET of this very path."""
    return send(port, "GET", path)


def send(port: int, method: str, path: str) -> int:
    """Ask without touching the path, as httpx would."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request(method, path, b"{}")
        return connection.getresponse().status
    finally:
        connection.close()


@both
def test_where_none_is_ready_all_are_asked(start: Start, tmp_path: Path) -> None:
    """A replica that reports not ready may still answer, so all are tried if no one is ready.

    In an overload every replica was marked down, and 11,680 of 47,996 callers got 503 from the
    balancer.
    """
    with replica(ready=503) as (port, _), start([port] * 3, tmp_path) as balancer:
        if start is haproxy:
            wait_until(lambda: printed(balancer.log).count("Server predictions/") >= 3)
        assert [post(balancer.port, "/predict") for _ in range(20)] == [200] * 20


def printed(log: Path) -> str:
    """Return the balancer's output about its replicas."""
    return (log.parent / "printed").read_text()


@both
def test_a_model_that_takes_long_is_waited_for(start: Start, tmp_path: Path) -> None:
    """It takes longer than nginx waits at first: nginx tries again, at a ready replica."""
    tries = 2 if start is nginx else 1
    with (
        replica(seconds=1.6, held=tries) as (port, asked),
        start([port] * 3, tmp_path) as balancer,
    ):
        assert post(balancer.port, "/predict") == 200
    assert len(asked) == tries
