"""Work on a thread whose result is for everyone who asks for it meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Generic, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
T = TypeVar("T")


class Shared(Generic[Arguments, T]):
    """Calls `make` on a thread, once at a time for each key."""

    def __init__(self, make: Callable[Arguments, T]) -> None:
        self._make = make
        self._running: dict[Hashable, asyncio.Future[T]] = {}

    async def get(self, key: Hashable, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> T:
        """What `make` gives for these arguments, which `key` stands for."""
        running = self._running.get(key)
        if running is None:
            work = asyncio.to_thread(self._make, *args, **kwargs)
            running = self._running[key] = asyncio.ensure_future(work)
            running.add_done_callback(lambda _: self._running.pop(key))
        return await asyncio.shield(running)  # one who leaves takes nothing from the others
