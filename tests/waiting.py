"""Helpers with which tests wait. A test that waits for anything else uses its own event.

Nothing here mistakes elapsed time for an event: each wait ends when its condition holds, and fails
after PATIENCE. Only outside processes, and conditions without an event, are polled.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from httpx._config import DEFAULT_TIMEOUT_CONFIG

T = TypeVar("T")

PATIENCE = 120.0
"""Seconds after which a wait fails instead of hanging."""

# By default httpx gives up after 5 s, which a busy machine exceeds. One object holds that default
# for all its functions and clients; there is no other way to change it in one place.
for _wait in ("connect", "read", "write", "pool"):
    setattr(DEFAULT_TIMEOUT_CONFIG, _wait, PATIENCE)

POLL = 0.02
"""Seconds between two looks at an outside process."""

LONG_LOOK = 0.001
"""Seconds that a look takes at least if it asks another process."""


async def iterations(count: int = 5) -> None:
    """Let the event loop go round `count` times: what was ready has then happened."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(
    condition: Callable[[], object | Awaitable[object]], *, seconds: float = PATIENCE
) -> None:
    """Let the event loop run until `condition` holds, which may be a coroutine function.

    The first thousand looks follow one another at once, later ones every POLL seconds, and so do
    those that take long: they ask another process. Raises TimeoutError after `seconds`.
    """
    looks = 0
    async with asyncio.timeout(seconds):
        while True:
            started = time.monotonic()
            found = condition()
            if inspect.isawaitable(found):
                found = await found
            if found:
                return
            looks += 1
            at_once = looks < 1000 and time.monotonic() - started < LONG_LOOK
            await asyncio.sleep(0 if at_once else POLL)


def wait_until(condition: Callable[[], T | None], *, seconds: float = PATIENCE) -> T:
    """Poll an outside process until `condition` holds, and return its value.

    Raises TimeoutError after `seconds`.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(POLL)
    raise TimeoutError(f"not so within {seconds:g} s")
