"""One address that takes the connections of all others."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from tests import onnx_models
from tests.e2e.processes import Cohort, cohort, free_port
from tests.waiting import PATIENCE, wait_until

MOST, PER_ADDRESS = 50, 40
HEALTH = b"GET /health/live HTTP/1.1\r\nHost: cohort\r\nConnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """A server for few connections, and fewer from one address."""
    folder = tmp_path_factory.mktemp("addresses")
    onnx_models.save(onnx_models.identity(), folder / "models" / "same" / "1" / "model.onnx")
    with cohort(
        folder / "models",
        folder,
        max_connections=MOST,
        max_connections_per_address=PER_ADDRESS,
        grpc_port=free_port(),
    ) as server:
        yield server


def connect(server: Cohort, source: str, *, grpc: bool = False) -> socket.socket:
    host, port = (server.grpc if grpc else server.url.removeprefix("http://")).split(":")
    connection = socket.create_connection((host, int(port)), PATIENCE, source_address=(source, 0))
    connection.settimeout(PATIENCE)
    return connection


def ended(connections: list[socket.socket]) -> list[socket.socket]:
    """Return the connections with something to read: an end, or a refusal before it."""
    poll = select.poll()
    for connection in connections:
        poll.register(connection, select.POLLIN)
    ready = {descriptor for descriptor, _ in poll.poll(0)}
    return [connection for connection in connections if connection.fileno() in ready]


def status(server: Cohort, source: str) -> bytes:
    with connect(server, source) as connection:
        connection.sendall(HEALTH)
        return connection.recv(65536)[:12]


def test_an_address_has_so_many_connections(server: Cohort) -> None:
    """Further ones get 429, others are answered, and the places are free once they are left."""
    with ExitStack() as stack:
        for _ in range(PER_ADDRESS):
            stack.enter_context(connect(server, "127.0.0.2"))
        assert status(server, "127.0.0.2") == b"HTTP/1.1 429"
        assert status(server, "127.0.0.3") == b"HTTP/1.1 200"
    wait_until(lambda: status(server, "127.0.0.2") == b"HTTP/1.1 200")


def test_an_address_has_as_many_connections_for_grpc(server: Cohort) -> None:
    """Further ones are closed, those of others greeted, and the places are free once left."""

    def is_greeted(source: str) -> bool:
        with connect(server, source, grpc=True) as connection, suppress(ConnectionResetError):
            return bool(connection.recv(1))
        return False

    with ExitStack() as stack:
        for _ in range(PER_ADDRESS):
            one = stack.enter_context(connect(server, "127.0.0.2", grpc=True))
            assert one.recv(1)
        assert not is_greeted("127.0.0.2")
        assert is_greeted("127.0.0.3")
        assert status(server, "127.0.0.2") == b"HTTP/1.1 200"
    wait_until(lambda: is_greeted("127.0.0.2"))


def test_who_has_the_most_makes_room(server: Cohort) -> None:
    """Idle connections of the address with the most are closed, not the oldest ones."""
    with ExitStack() as stack:
        first = [stack.enter_context(connect(server, "127.0.0.4")) for _ in range(5)]
        assert status(server, "127.0.0.4") == b"HTTP/1.1 200"
        many = [stack.enter_context(connect(server, "127.0.0.5")) for _ in range(PER_ADDRESS)]
        some = [stack.enter_context(connect(server, "127.0.0.6")) for _ in range(15)]
        assert status(server, "127.0.0.7") == b"HTTP/1.1 200"
        wait_until(lambda: len(ended(many)) >= 10)
        assert not ended(first)
        assert not ended(some)
