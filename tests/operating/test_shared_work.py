"""Work that is done once for all who ask for it."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

import pytest

from cohort.operating import Shared, in_turns
from tests.waiting import iterations


class Counted:
    """Work that runs until it may end."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.may_end = asyncio.Event()

    async def __call__(self, text: str) -> str:
        self.calls.append(text)
        await self.may_end.wait()
        if text == "bad":
            raise ValueError(text)
        return text.upper()


async def test_who_asks_meanwhile_gets_the_same() -> None:
    """Another key or a later call starts other work; a caller who leaves ends no other's."""
    work = Counted()
    shared = Shared(work)
    asked = [asyncio.create_task(shared.get(key, key)) for key in ("a", "a", "b", "a")]
    await iterations()
    asked[0].cancel()
    await iterations()
    work.may_end.set()
    assert await asyncio.gather(*asked[1:]) == ["A", "B", "A"]
    assert sorted(work.calls) == ["a", "b"]
    assert await shared.get("a", "a") == "A"
    assert sorted(work.calls) == ["a", "a", "b"]


async def test_failure_is_everyones_and_not_kept() -> None:
    """The next one tries again."""
    work = Counted()
    work.may_end.set()
    shared = Shared(work)
    for _ in range(2):
        with pytest.raises(ValueError, match="bad"):
            await shared.get("bad", "bad")
    assert work.calls == ["bad", "bad"]


async def test_others_have_their_turns_in_between() -> None:
    """Work continues in each turn of the loop if a step takes longer than its time."""
    turns = 0

    def count() -> None:
        nonlocal turns
        turns += 1
        asyncio.get_running_loop().call_soon(count)

    def work() -> Generator[None, None, list[int]]:
        seen = []
        for _ in range(5):
            seen.append(turns)
            yield
        return seen

    count()
    assert await in_turns(work(), turn=0.0) == [1, 2, 3, 4, 5]
    assert len(set(await in_turns(work(), turn=3600.0))) == 1


async def test_work_in_turns_ends_with_its_own_failure() -> None:
    """It raises as if it had been called directly."""

    def work() -> Generator[None, None, None]:
        yield
        raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        await in_turns(work())
