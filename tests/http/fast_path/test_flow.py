"""A connection that brings much lets others be read in between."""

from __future__ import annotations

import asyncio

from cohort.http.fast_path.shared import GIVE_WAY_BYTES, Flow
from tests.waiting import until


class Reading(asyncio.Transport):
    """Notes when reading is paused and resumed."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.closing = False

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")

    def is_closing(self) -> bool:
        return self.closing


async def once() -> None:
    """Wait until all calls that were due soon have run."""
    called: list[bool] = []
    asyncio.get_running_loop().call_soon(called.append, True)
    await until(lambda: bool(called))


async def test_a_large_segment_gives_way_once() -> None:
    """It stops the reading at once, or the loop reads on, and resumes it in the next iteration."""
    transport = Reading()
    flow = Flow(transport)
    flow.give_way(GIVE_WAY_BYTES - 1, asyncio.get_running_loop())
    assert transport.calls == []
    flow.give_way(GIVE_WAY_BYTES, asyncio.get_running_loop())
    assert transport.calls == ["pause"]
    await once()
    assert transport.calls == ["pause", "resume"]


async def test_who_stopped_reading_decides_when_it_goes_on() -> None:
    """Only a pause by `give_way` ends automatically, in either order of the two pauses."""
    transport = Reading()
    flow = Flow(transport)
    flow.pause_reading()
    flow.give_way(GIVE_WAY_BYTES, asyncio.get_running_loop())
    await once()
    assert transport.calls == ["pause"]
    flow.resume_reading()
    flow.give_way(GIVE_WAY_BYTES, asyncio.get_running_loop())
    flow.pause_reading()
    await once()
    assert transport.calls == ["pause", "resume", "pause"]


async def test_a_connection_that_closed_meanwhile_reads_no_more() -> None:
    """uvloop raises if a closed transport is asked to read."""
    transport = Reading()
    flow = Flow(transport)
    flow.give_way(GIVE_WAY_BYTES, asyncio.get_running_loop())
    transport.closing = True
    await once()
    assert transport.calls == ["pause"]
