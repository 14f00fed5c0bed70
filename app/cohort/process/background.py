"""Repeated background steps, which continue after failures."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import structlog

log = structlog.get_logger("cohort")

Step = Callable[[], Awaitable[None]]


async def attempt(step: Step) -> None:
    """Run `step`; if it fails, log the error."""
    try:
        await step()
    except Exception:
        log.exception("a background step failed")


async def repeat(step: Step, seconds: float) -> None:
    """Run `step` every `seconds`."""
    while True:
        await attempt(step)
        await asyncio.sleep(seconds)


class FileWatch:
    """Reads an operator's files every few seconds, and on request.

    seconds: Interval between two readings; 0: only the first, and those on request.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._wakes: list[Callable[[], None]] = []

    def check_now(self) -> None:
        """Read all files now."""
        log.info("looking at all files")
        for wake in self._wakes:
            wake()

    def on_check_now(self, wake: Callable[[], None]) -> None:
        """Call `wake` whenever all files must be read."""
        self._wakes.append(wake)

    async def follow(
        self,
        check: Step,
        pause: Callable[[], float] = float,
        again: asyncio.Event | None = None,
    ) -> None:
        """Read some files repeatedly, without end.

        pause: Minimum seconds between two readings; default: no minimum.
        again: Set when a reading is due; default: a new event.
        """
        again = again or asyncio.Event()
        self._wakes.append(again.set)
        while True:
            again.clear()
            await attempt(check)
            with suppress(TimeoutError):
                limit = max(self._seconds, pause()) if self._seconds else None
                async with asyncio.timeout(limit):
                    await again.wait()
