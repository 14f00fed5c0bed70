"""More than one connection is accepted in an iteration of the event loop."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack

import pytest
import uvloop

from cohort.connections.listeners import HANDLES, handles_of
from tests.waiting import iterations

MANY = 5 * HANDLES


@pytest.mark.parametrize("several", [False, True])
def test_a_crowd_is_accepted_in_few_iterations(several: bool) -> None:
    """The loop itself takes one iteration for each: should that ever change, this can go."""
    made: list[asyncio.BaseTransport] = []

    class Accepted(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.append(transport)

    async def accept_all(listener: socket.socket) -> int:
        loop, taken = asyncio.get_running_loop(), 0
        handles = handles_of(listener) if several else [listener]
        servers = [await loop.create_server(Accepted, sock=handle) for handle in handles]
        while len(made) < MANY:
            before = len(made)
            await iterations(1)
            taken += len(made) > before  # what they may take to begin does not count
        for server in servers:
            server.close()
        for transport in made:
            transport.abort()  # type: ignore[attr-defined]
        return taken

    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=MANY))
        listener.setblocking(False)
        for _ in range(MANY):
            stack.enter_context(socket.create_connection(listener.getsockname()))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            taken = runner.run(accept_all(listener))
    assert len(made) == MANY
    if several:
        assert taken <= MANY // HANDLES + 2
    else:
        assert taken == MANY


def test_handles_are_one_socket() -> None:
    """Each accepts what comes to the same address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        handles = handles_of(listener)
        assert len(handles) == HANDLES
        assert handles[0] is listener
        assert {handle.getsockname() for handle in handles} == {listener.getsockname()}
        with socket.create_connection(listener.getsockname()) as caller:
            accepted, address = handles[-1].accept()
            accepted.close()
            assert address == caller.getsockname()
        for handle in handles[1:]:
            handle.close()
