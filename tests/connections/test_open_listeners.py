"""Listeners on addresses of both families, on several addresses, or on a Unix socket."""

from __future__ import annotations

import socket
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from cohort.connections.listeners import open_listeners, open_unix_listener
from cohort.connections.probe import places_of

V4, V6 = "127.0.0.1", "::1"


def answering(hosts: str) -> set[str]:
    """Return the loopback addresses that accept a connection."""
    found = set()
    with ExitStack() as stack:
        for one in open_listeners(hosts, 0, backlog=5):
            stack.enter_context(one)
            port = one.getsockname()[1]
        for address in (V4, V6):
            try:
                socket.create_connection((address, port), timeout=5).close()
            except OSError:
                continue
            found.add(address)
    return found


@pytest.mark.parametrize(
    ("hosts", "found"),
    [
        ("::", {V4, V6}),
        ("[::]", {V4, V6}),
        ("0.0.0.0", {V4}),
        ("0.0.0.0,::", {V4, V6}),
        ("::,127.0.0.1", {V4, V6}),
        ("127.0.0.1, [::1]", {V4, V6}),
        ("[::1]", {V6}),
        ("::1", {V6}),
        ("127.0.0.1", {V4}),
    ],
)
def test_hosts_are_listened_on(hosts: str, found: set[str]) -> None:
    """All on one port, with brackets or without; `::` is both families."""
    assert answering(hosts) == found


def test_one_that_is_taken_frees_the_others() -> None:
    """The error names the address."""
    with socket.create_server((V6, 0), family=socket.AF_INET6) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="in use") as error:
            open_listeners(f"{V4},{V6}", port, backlog=5)
        assert error.value.filename == V6
        for one in open_listeners(V4, port, backlog=5):
            one.close()


def test_a_unix_socket_that_was_left_is_replaced(tmp_path: Path) -> None:
    """One with a live listener is not replaced, and neither is a file."""
    path = tmp_path / "cohort.sock"
    open_unix_listener(path, backlog=5).close()
    with open_unix_listener(path, backlog=5):
        with pytest.raises(OSError, match="already listens on this socket"):
            open_unix_listener(path, backlog=5)
        with closing(socket.socket(socket.AF_UNIX)) as caller:
            caller.connect(str(path))
    file = tmp_path / "file"
    file.write_text("kept")
    with pytest.raises(OSError, match="in use"):
        open_unix_listener(file, backlog=5)
    assert file.read_text() == "kept"


@pytest.mark.parametrize(
    ("environment", "first"),
    [
        ({}, (V4, 8000)),
        ({"COHORT_HOST": "0.0.0.0", "COHORT_PORT": "9000"}, (V4, 9000)),
        ({"COHORT_HOST": "::"}, (V6, 8000)),
        ({"COHORT_HOST": "[::1],10.0.0.1"}, (V6, 8000)),
        ({"COHORT_PORT": "tcp://10.96.12.7:8000"}, (V4, 8000)),
        ({"COHORT_UDS": "/run/cohort.sock", "COHORT_PORT": "9000"}, "/run/cohort.sock"),
    ],
)
def test_the_image_asks_what_is_listened_on(
    environment: dict[str, str], first: str | tuple[str, int]
) -> None:
    """The image reads the same variables as the server."""
    assert next(places_of(environment)) == first
