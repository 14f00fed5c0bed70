"""Handshakes that stop, and the log of those that fail."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from structlog.testing import capture_logs

from cohort.http.tls.handshakes import MAX_ANSWERED, MAX_WAITING, Handshakes
from tests.waiting import until

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def handshakes() -> Iterator[Handshakes]:
    made = Handshakes()
    yield made
    made.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    """The server's end and a caller's end of a connection."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as caller,
        listener.accept()[0] as accepted,
    ):
        yield accepted, caller


class Waiting:
    """A connection whose caller sends nothing more."""

    def __init__(self, handshakes: Handshakes, address: str = "10.0.0.1", on: int = 0) -> None:
        self._handshakes = handshakes
        self.address: str | bytes = address
        self.descriptor = on
        self.reason = ""

    def fail(self, kind: str, reason: str, /) -> None:
        self.reason = reason
        self._handshakes.note_failure(kind, reason, ("10.0.0.1", 1))
        self._handshakes.end(self)


@contextmanager
def held(handshakes: Handshakes, on: int) -> Iterator[None]:
    """The thread is busy with a step until this ends."""
    began, end = threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        end.wait()

    handshakes.run(Waiting(handshakes, "10.0.0.9", on), work)
    began.wait()
    try:
        yield
    finally:
        end.set()


async def test_addresses_take_turns(handshakes: Handshakes, pair: Pair) -> None:
    """Each address has one step in turn, however many wait; its own steps stay in order."""
    done, on = list[str](), pair[0].fileno()
    with held(handshakes, on):
        steps = [
            handshakes.run(
                Waiting(handshakes, address, on), partial(done.append, f"{address}{number}")
            )
            for address, count in (("a", 100), ("b", 2), ("c", 1))
            for number in range(count)
        ]
    await asyncio.gather(*steps)
    assert done == ["a0", "b0", "c0", "a1", "b1", *[f"a{number}" for number in range(2, 100)]]


@pytest.mark.parametrize("how", ["reset", "end", "closed here"])
async def test_steps_of_who_has_gone_are_not_done(
    handshakes: Handshakes, pair: Pair, how: str
) -> None:
    """Whether the caller has reset the connection, has ended it, or the server has closed it."""
    accepted, caller = pair
    done, descriptor = list[str](), accepted.fileno()
    with held(handshakes, descriptor):
        step = handshakes.run(Waiting(handshakes, on=descriptor), partial(done.append, "done"))
        if how == "reset":
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        (accepted if how == "closed here" else caller).close()
    with pytest.raises(ConnectionResetError, match="the client disconnected"):
        await step
    assert not done


async def test_a_step_is_not_done_after_its_connection(handshakes: Handshakes, pair: Pair) -> None:
    """It no longer counts among those that wait, either."""
    done, on = list[str](), pair[0].fileno()
    with held(handshakes, on):
        for _ in range(2 * MAX_WAITING):
            one = Waiting(handshakes, on=on)
            step = handshakes.run(one, partial(done.append, "left"))
            handshakes.end(one)
            await until(step.cancelled)
        last = handshakes.run(Waiting(handshakes, on=on), partial(done.append, "last"))
    await last
    assert done == ["last"]
    assert not handshakes.failed


async def test_the_newest_of_the_most_fails_where_too_many_wait(
    handshakes: Handshakes, pair: Pair
) -> None:
    """Handshakes of other addresses stay."""
    on = pair[0].fileno()
    with held(handshakes, on):
        many = [Waiting(handshakes, "many", on) for _ in range(MAX_WAITING)]
        few = [Waiting(handshakes, f"few{number}", on) for number in range(2)]
        steps = [handshakes.run(one, lambda: None) for one in many + few]
        more = Waiting(handshakes, "many", on)
        refused = handshakes.run(more, lambda: None)
        await until(refused.cancelled)
    await asyncio.gather(*steps, return_exceptions=True)
    assert [one for one in many + few if one.reason] == many[-2:]
    assert more.reason == "too many handshakes wait for the server"
    assert [step.cancelled() for step in steps].count(True) == 2
    assert handshakes.failed == {"limit": 3}


async def test_an_address_more_is_refused_where_all_have_as_many(
    handshakes: Handshakes, pair: Pair
) -> None:
    """Earlier connections are not closed for it."""
    on = pair[0].fileno()
    with held(handshakes, on):
        all_ = [Waiting(handshakes, f"{number}", on) for number in range(MAX_WAITING + 1)]
        steps = [handshakes.run(one, lambda: None) for one in all_]
    await asyncio.gather(*steps, return_exceptions=True)
    assert [one for one in all_ if one.reason] == all_[-1:]


async def test_the_oldest_that_was_answered_makes_room(handshakes: Handshakes, pair: Pair) -> None:
    """A handshake that has continued is not among them."""
    many = [Waiting(handshakes, on=pair[0].fileno()) for _ in range(MAX_ANSWERED + 2)]
    for one in many[:MAX_ANSWERED]:
        handshakes.wait(one)
    await handshakes.run(many[0], lambda: None)
    handshakes.wait(many[-2])
    assert not any(one.reason for one in many)
    handshakes.wait(many[-1])
    assert [one for one in many if one.reason] == [many[1]]
    assert handshakes.failed == {"limit": 1}


async def test_steps_are_done_off_the_event_loop(handshakes: Handshakes, pair: Pair) -> None:
    """The event loop continues during a long step, and an error is returned."""
    began, end = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def long() -> None:
        loop.call_soon_threadsafe(began.set)
        asyncio.run_coroutine_threadsafe(end.wait(), loop).result()
        raise ValueError("wrong")

    step = handshakes.run(Waiting(handshakes, on=pair[0].fileno()), long)
    await began.wait()
    end.set()
    (error,) = await asyncio.gather(step, return_exceptions=True)
    assert str(error) == "wrong"


def test_a_flood_of_failures_is_counted_and_not_all_logged(handshakes: Handshakes) -> None:
    """The log has the first of a second, with the reason and the address."""
    with capture_logs() as logged:
        for _ in range(1000):
            handshakes.note_failure("refused", "unknown ca", ("10.0.0.1", 1))
    assert handshakes.failed == {"refused": 1000}
    assert 20 <= len(logged) < 1000
    assert (logged[0]["reason"], logged[0]["peer"]) == ("unknown ca", "10.0.0.1:1")
