"""Work that is done once for all who ask for it."""

from __future__ import annotations

import asyncio
import threading

import pytest

from app.control_plane import Shared
from tests.waiting import PATIENCE, iterations


class Counted:
    """Work that goes on until it may end."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.may_end = threading.Event()

    def __call__(self, text: str) -> str:
        self.calls.append(text)
        assert self.may_end.wait(PATIENCE)
        if text == "bad":
            raise ValueError(text)
        return text.upper()


async def test_who_asks_meanwhile_gets_the_same() -> None:
    """Off the event loop; another key is other work, and later is anew."""
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
