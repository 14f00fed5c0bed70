"""Handshakes that do not go on, and what is noted of those that fail."""

from __future__ import annotations

import asyncio

from structlog.testing import capture_logs

from app.rest.tls.handshakes import MOST_ANSWERED, Handshakes


class Waiting:
    """A connection whose caller does not go on."""

    def __init__(self, handshakes: Handshakes) -> None:
        self._handshakes = handshakes
        self.reason = ""

    def fail(self, kind: str, reason: str, /) -> None:
        self.reason = reason
        self._handshakes.note_failure(kind, reason, ("10.0.0.1", 1))
        self._handshakes.end(self)


async def test_the_oldest_that_was_answered_makes_room() -> None:
    """One that goes on, or has gone on, is not among them."""
    handshakes = Handshakes()
    many = [Waiting(handshakes) for _ in range(MOST_ANSWERED + 2)]
    for one in many[:MOST_ANSWERED]:
        handshakes.wait(one)
    await handshakes.run(many[0], lambda: None)
    handshakes.wait(many[-2])
    assert not any(one.reason for one in many)
    handshakes.wait(many[-1])
    assert [one for one in many if one.reason] == [many[1]]
    assert handshakes.failed == {"limit": 1}
    handshakes.close()


async def test_steps_are_done_off_the_event_loop() -> None:
    """The loop goes on while one takes long, and an error comes back."""
    handshakes, began, end = Handshakes(), asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def long() -> None:
        loop.call_soon_threadsafe(began.set)
        asyncio.run_coroutine_threadsafe(end.wait(), loop).result()
        raise ValueError("wrong")

    step = handshakes.run(Waiting(handshakes), long)
    await began.wait()
    end.set()
    (error,) = await asyncio.gather(step, return_exceptions=True)
    assert str(error) == "wrong"
    handshakes.close()


def test_a_flood_of_failures_is_counted_and_not_all_logged() -> None:
    """The log has the first of a second, with the reason and the address."""
    handshakes = Handshakes()
    with capture_logs() as logged:
        for _ in range(1000):
            handshakes.note_failure("refused", "unknown ca", ("10.0.0.1", 1))
    assert handshakes.failed == {"refused": 1000}
    assert 20 <= len(logged) < 1000
    assert (logged[0]["reason"], logged[0]["peer"]) == ("unknown ca", "10.0.0.1:1")
