"""Events that wait for a slow client."""

from __future__ import annotations

import asyncio

import pytest

from cohort.connections.memory import MemoryBudget
from cohort.errors import InferenceFailed, Overloaded
from cohort.http.calls import JSON, Encoded
from cohort.http.event_stream import EventReply
from tests.waiting import iterations


async def test_events_that_wait_are_sent_together() -> None:
    """A client that reads slowly gets fewer, longer parts, and each event once."""
    reply = EventReply(MemoryBudget(2**20).hold())
    events = reply.events()
    for one in (b"a", b"b", b"c"):
        reply.part(one)
    assert await anext(events) == b"abc"
    reply.part(b"d")
    reply.end(None)
    assert [one async for one in events] == [b"d"]
    assert reply.began.result() is None


async def test_waiting_events_count_in_the_memory_budget() -> None:
    """Long ones are counted until they are sent; without room, the next one is refused."""
    budget = MemoryBudget(100_000)
    reply = EventReply(budget.hold())
    events = reply.events()
    reply.part(b"a" * 60_000)
    reply.part(b"b" * 30_000)
    assert budget.used == 90_000
    with pytest.raises(Overloaded):
        reply.part(b"c" * 20_000)
    assert len(await anext(events)) == 90_000
    reply.part(b"d")
    assert await anext(events) == b"d"
    assert budget.used == 0


async def test_the_first_part_decides_the_form() -> None:
    """A whole answer is known at its end; an error counts as a refusal before the first event."""
    whole = EventReply(MemoryBudget(2**20).hold())
    whole.part(Encoded(b"{}", JSON))
    assert not whole.began.done()
    whole.end(None)
    assert await whole.began == Encoded(b"{}", JSON)
    refused = EventReply(MemoryBudget(2**20).hold())
    refused.end(InferenceFailed("it failed"))
    with pytest.raises(InferenceFailed):
        await refused.began
    streamed = EventReply(MemoryBudget(2**20).hold())
    reading = asyncio.ensure_future(anext(streamed.events()))
    await iterations()
    streamed.part(b"a")
    streamed.end(InferenceFailed("it failed"))
    assert await reading == b"a"
    assert isinstance(streamed.error, InferenceFailed)
