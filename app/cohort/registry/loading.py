"""How loads run: each on a thread of its own, few at once, and none for ever."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic

import structlog

from cohort.errors import LoadFailed
from cohort.registry.engine import OpenedVersion
from cohort.session import CancellationToken

log = structlog.get_logger("cohort.registry")

PLACES = 2
"""Loads at once: each takes a core, and the memory of its model several times."""

LONG_SECONDS = 5.0
"""A load that takes longer gives up its place, so that others begin beside it."""

MAX_LOADS = 8
"""Loads at once, those included that have given up their place."""

MIN_WAIT_SECONDS = 0.02
"""Between two looks whether a load is late, while it waits for others."""

ENDING_SECONDS = 1.0
"""How long a load that was cancelled may take to end. Most do at once, or at the next node."""


class LoadTimedOut(LoadFailed):
    """A load took longer than `load_timeout_s`."""


Outcome = asyncio.Future[OpenedVersion]


class LoadThreads:
    """Runs loads side by side, each on a daemon thread of its own.

    A load that does not end in time is cancelled: its session's creation, its runs and the process
    that inspects it. What cannot be cancelled, such as a node that takes for ever or a disk that
    does not answer, is left: its thread goes on, closes what it opened when it ends, and the
    version is not loaded anew before.
    """

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(PLACES)
        self._all = asyncio.Semaphore(MAX_LOADS)
        self._left: set[tuple[str, int]] = set()

    async def run(
        self,
        version: tuple[str, int],
        open_version: Callable[[], OpenedVersion],
        token: CancellationToken,
        *,
        seconds: float,
    ) -> tuple[OpenedVersion, float]:
        """Load a version; give it, and the seconds that it took. Wait for a place first.

        version: The model and the number. Two loads of one version must not go on at once.
        open_version: Loads it, on a thread.
        token: Cancels it.
        seconds: How long that may take, besides what it waits for others.

        Where this is cancelled, the load is. Raises LoadFailed, and as `open_version`.
        """
        if version in self._left:
            raise LoadFailed(
                "an earlier load of it could not be ended and still goes on; it is tried again "
                "after that, or when the server is restarted",
                transient=True,
            )
        async with self._place():
            began = monotonic()
            outcome = self._start(version, open_version)
            try:
                await self._wait(version, outcome, token, seconds)
            except asyncio.CancelledError:
                outcome.add_done_callback(_close)
                token.cancel("it is not wanted any more")
                await asyncio.wait({outcome}, timeout=ENDING_SECONDS)
                raise
            finally:
                if not outcome.done():
                    self._left.add(version)
                    outcome.cancel()
            return outcome.result(), monotonic() - began

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        """Hold a place, for LONG_SECONDS at most, while inside."""
        held = True

        def give_up() -> None:
            nonlocal held
            if held:
                held = False
                self._places.release()

        async with self._all:
            await self._places.acquire()
            long = asyncio.get_running_loop().call_later(LONG_SECONDS, give_up)
            try:
                yield
            finally:
                long.cancel()
                give_up()

    def _start(
        self, version: tuple[str, int], open_version: Callable[[], OpenedVersion]
    ) -> Outcome:
        loop = asyncio.get_running_loop()
        outcome: Outcome = loop.create_future()

        def finish(opened: OpenedVersion | None, error: Exception | None) -> None:
            if outcome.cancelled():
                self._left.discard(version)
                log.warning("a load that was left has ended", model=version[0], version=version[1])
                if opened is not None:
                    opened.close()
            elif opened is not None:
                outcome.set_result(opened)
            else:
                outcome.set_exception(error or AssertionError("neither loaded nor failed"))

        def work() -> None:
            opened: OpenedVersion | None = None
            failure: Exception | None = None
            try:
                opened = open_version()
            except Exception as error:  # noqa: BLE001 - the one who waits gets it
                failure = error
            except BaseException as error:  # noqa: BLE001 - it would end the event loop
                failure = RuntimeError(repr(error))
            try:
                loop.call_soon_threadsafe(finish, opened, failure)
            except RuntimeError:  # the loop is closed
                if opened is not None:
                    opened.close()

        threading.Thread(target=work, name="cohort-load", daemon=True).start()
        return outcome

    async def _wait(
        self, version: tuple[str, int], outcome: Outcome, token: CancellationToken, seconds: float
    ) -> None:
        """Wait for the outcome. Raises LoadFailed where it does not come in time."""
        began = monotonic()
        await _wait_until(outcome, began + seconds / 2, token)
        if not outcome.done():
            log.warning(
                "load takes long",
                model=version[0],
                version=version[1],
                stage=token.stage,
                seconds=seconds / 2,
                load_timeout_s=seconds,
            )
            await _wait_until(outcome, began + seconds, token)
        if outcome.done():
            return
        reason = (
            f"it took longer than {seconds:g} s (load_timeout_s) to load, at last {token.stage}"
        )
        token.cancel(reason)
        await asyncio.wait({outcome}, timeout=ENDING_SECONDS)
        if not outcome.done():
            raise LoadTimedOut(f"{reason}, which cannot be ended and goes on")
        if (error := outcome.exception()) is not None:
            raise LoadTimedOut(reason) from error


async def _wait_until(outcome: Outcome, until: float, token: CancellationToken) -> None:
    """Wait for the outcome until then, on the monotonic clock, and as long as the load has waited.

    Others hold what it waited for, so that a crowd of loads makes none of them late.
    """
    while not outcome.done() and (left := until + token.waited - monotonic()) > 0:
        await asyncio.wait({outcome}, timeout=max(left, MIN_WAIT_SECONDS))


def _close(outcome: Outcome) -> None:
    """Close what nobody wants any more."""
    if not outcome.cancelled() and outcome.exception() is None:
        outcome.result().close()
