"""Work whose result is for everyone who asks for it meanwhile, and work done between turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Hashable
from time import perf_counter
from typing import Any, Generic, ParamSpec, TypeVar

LOOP_TURN_SECONDS = 0.0005
"""How long work in turns has the event loop at a time, and its longest step more."""

Arguments = ParamSpec("Arguments")
T = TypeVar("T")


class Shared(Generic[Arguments, T]):
    """Awaits `make`, once at a time for each key."""

    def __init__(self, make: Callable[Arguments, Coroutine[Any, Any, T]]) -> None:
        self._make = make
        self._running: dict[Hashable, asyncio.Future[T]] = {}

    async def get(self, key: Hashable, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> T:
        """What `make` gives for these arguments, which `key` stands for."""
        running = self._running.get(key)
        if running is None:
            work = self._make(*args, **kwargs)
            running = self._running[key] = asyncio.ensure_future(work)
            running.add_done_callback(lambda _: self._running.pop(key))
        return await asyncio.shield(running)  # one who leaves takes nothing from the others


async def in_turns(work: Generator[None, None, T], turn: float = LOOP_TURN_SECONDS) -> T:
    """Do `work` on the event loop, which goes on after each `turn` seconds; gives what it returns.

    A thread would hold the interpreter's lock for 5 ms at each of the loop's turns.
    """
    began = perf_counter()
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result
        if perf_counter() - began >= turn:
            await asyncio.sleep(0)
            began = perf_counter()


def at_once(work: Generator[None, None, T]) -> T:
    """Do `work` without turns for anyone else; gives what it returns."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result
