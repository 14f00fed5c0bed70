"""Connections on their way to a worker, on real sockets."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from time import monotonic

import pytest

from cohort.workers.passing import Channel, Intake, Kind


class Far:
    """A worker's end that keeps what it takes."""

    def __init__(self, own: socket.socket) -> None:
        self.taken: list[socket.socket] = []
        self.ends = 0
        self.kinds: list[Kind] = []
        self.intake = Intake(own, self._take, lambda: len(self.taken), self._end)

    def _take(self, connection: socket.socket, kind: Kind) -> None:
        self.taken.append(connection)
        self.kinds.append(kind)

    def _end(self) -> None:
        self.ends += 1


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Far]]:
    """The parent's end and the worker's."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with near, far:
        worker = Far(far)
        yield Channel(near), worker
        for one in worker.taken:
            one.close()


def test_a_connection_is_passed_and_reported(ends: tuple[Channel, Far]) -> None:
    """The parent lets go of it only once the worker has it, and knows how many are open."""
    channel, far = ends
    ours, theirs = socket.socketpair()
    with ours:
        assert channel.give(theirs)
        assert channel.connections == 1
        assert channel.waiting(monotonic() + 5) >= 5
        far.intake.take()
        assert channel.hear()
        assert (channel.connections, channel.waiting(monotonic())) == (1, 0)
        assert theirs.fileno() == -1
        far.taken[0].send(b"hello")
        assert ours.recv(5) == b"hello"
        far.taken.pop().close()
        far.intake.report()
        assert channel.hear()
        assert channel.connections == 0


def test_a_connection_is_passed_with_what_it_is_for(ends: tuple[Channel, Far]) -> None:
    """HTTP or gRPC, in the order in which they were given."""
    channel, far = ends
    pairs = [socket.socketpair() for _ in Kind]
    for kind, (_, theirs) in zip(Kind, pairs, strict=True):
        channel.give(theirs, kind)
    far.intake.take()
    channel.hear()
    assert far.kinds == [*Kind]
    for ours, _ in pairs:
        ours.close()


def test_connections_that_were_not_taken_go_to_somebody_else(ends: tuple[Channel, Far]) -> None:
    """Those that a worker took before it ended are lost with it, the others not."""
    channel, far = ends
    pairs = [socket.socketpair() for _ in range(3)]
    for _, theirs in pairs[:1]:
        channel.give(theirs)
    far.intake.take()
    kinds = [Kind.HTTP, Kind.RPC]
    for kind, (_, theirs) in zip(kinds, pairs[1:], strict=True):
        channel.give(theirs, kind)
    left = channel.close()
    assert left == [(kind, theirs) for kind, (_, theirs) in zip(kinds, pairs[1:], strict=True)]
    for ours, theirs in pairs:
        ours.close()
        theirs.close()


def test_the_end_comes_after_the_last_connection(ends: tuple[Channel, Far]) -> None:
    """It comes once, even if the parent exits after sending it."""
    channel, far = ends
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel.give(theirs)
        channel.end()
        channel.socket.close()
        far.intake.take()
        far.intake.take()
        assert (len(far.taken), far.ends) == (1, 1)


def test_a_channel_that_is_full_takes_no_more(ends: tuple[Channel, Far]) -> None:
    """Another worker is to have it: the parent does not wait."""
    channel, _ = ends
    pairs = []
    while True:
        pairs.append(socket.socketpair())
        if not channel.give(pairs[-1][1]):
            break
        assert len(pairs) < 5000
    for ours, theirs in pairs:
        ours.close()
        theirs.close()


def test_a_worker_that_has_ended_is_noticed(ends: tuple[Channel, Far]) -> None:
    """It gets no more, and its end of the channel is closed."""
    channel, far = ends
    far.intake.socket.close()
    assert not channel.hear()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert not channel.give(theirs)
        os.fstat(theirs.fileno())
