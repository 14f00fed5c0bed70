"""Work on the items of a stream, many at a time, with results in the order of the items."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")

IN_FLIGHT = 64
"""Items in progress; the next one is read when the oldest has ended."""


async def in_order(
    items: AsyncIterator[A], work: Callable[[A], Awaitable[B]], at_once: int = IN_FLIGHT
) -> AsyncGenerator[B]:
    """Yield the result of `work` for each item. Raises its error, or that of `items`.

    Close the generator to cancel what is in progress.
    """
    waiting: asyncio.Queue[asyncio.Future[B] | None] = asyncio.Queue(at_once)

    async def read() -> None:
        try:
            async for item in items:
                future = asyncio.ensure_future(work(item))
                try:
                    await waiting.put(future)
                except asyncio.CancelledError:
                    future.cancel()
                    raise
        finally:
            await waiting.put(None)

    reader = asyncio.ensure_future(read())
    try:
        while (first := await waiting.get()) is not None:
            yield await first
        await reader
    finally:
        reader.cancel()
        while not waiting.empty():
            if (left := waiting.get_nowait()) is not None:
                left.cancel()
