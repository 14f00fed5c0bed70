"""What is done again and again in the background, also after it failed once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import structlog

log = structlog.get_logger("cohort")

Step = Callable[[], Awaitable[None]]


async def attempt(step: Step) -> None:
    """Do `step`; where it fails, log why."""
    try:
        await step()
    except Exception:
        log.exception("a background step failed")


async def repeat(step: Step, seconds: float) -> None:
    """Do `step` every `seconds`."""
    while True:
        await attempt(step)
        await asyncio.sleep(seconds)


class FileWatch:
    """Looks at an operator's files every few seconds, and whenever it is told to.

    seconds: Between two looks; 0: none but the first, and those that are asked for.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._wakes: list[Callable[[], None]] = []

    def look_now(self) -> None:
        """Look at all files now."""
        log.info("looking at all files")
        for wake in self._wakes:
            wake()

    def on_look_now(self, wake: Callable[[], None]) -> None:
        """Call `wake` whenever all files are to be looked at."""
        self._wakes.append(wake)

    async def follow(
        self,
        look: Step,
        pause: Callable[[], float] = float,
        again: asyncio.Event | None = None,
    ) -> None:
        """Look at some files, for ever.

        pause: The seconds between two looks that it needs at least; default: none.
        again: Set when a look is due; default: one of its own.
        """
        again = again or asyncio.Event()
        self._wakes.append(again.set)
        while True:
            again.clear()
            await attempt(look)
            with suppress(TimeoutError):
                limit = max(self._seconds, pause()) if self._seconds else None
                async with asyncio.timeout(limit):
                    await again.wait()
