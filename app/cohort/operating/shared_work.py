"""Work with one result for concurrent requests, and long work that lets other work run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Hashable
from time import perf_counter
from typing import Any, Generic, ParamSpec, TypeVar

LOOP_TURN_SECONDS = 0.0005
"""Time that such work has the event loop at once; its longest step may add to it."""

Arguments = ParamSpec("Arguments")
T = TypeVar("T")


class Shared(Generic[Arguments, T]):
    """Awaits `make` for each key, with one call at a time that all waiting requests share."""

    def __init__(self, make: Callable[Arguments, Coroutine[Any, Any, T]]) -> None:
        self._make = make
        self._running: dict[Hashable, asyncio.Future[T]] = {}

    async def get(self, key: Hashable, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> T:
        """Return the result of `make` for these arguments, which `key` identifies."""
        running = self._running.get(key)
        if running is None:
            work = self._make(*args, **kwargs)
            running = self._running[key] = asyncio.ensure_future(work)
            running.add_done_callback(lambda _: self._running.pop(key))
        return await asyncio.shield(
            running
        )  # a request that is cancelled does not cancel the others


async def in_turns(work: Generator[None, None, T], turn: float = LOOP_TURN_SECONDS) -> T:
    """Run `work` on the event loop, pause after each `turn` seconds, and return its result.

    A thread would hold the interpreter's lock for 5 ms at each turn of the loop.
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
    """Run `work` without pauses, and return its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result
