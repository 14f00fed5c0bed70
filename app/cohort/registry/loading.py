"""Loading on threads: each load has its own thread, a concurrency limit and a time limit."""

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
"""Concurrent loads: each uses a core, and several times the memory of its model."""

LONG_SECONDS = 5.0
"""A load that takes longer gives up its place, so that another load can begin."""

MAX_LOADS = 8
"""Concurrent loads, including those that have given up their place."""

MIN_WAIT_SECONDS = 0.02
"""Minimum interval between two checks of a load's time limit, while it waits for others."""

ENDING_SECONDS = 1.0
"""Time for a cancelled load to end. Most end at once, or at the next node."""


class LoadTimedOut(LoadFailed):
    """A load took longer than `load_timeout_s`."""


Outcome = asyncio.Future[OpenedVersion]


class LoadThreads:
    """Runs loads concurrently, each on its own daemon thread.

    A load that exceeds its time is cancelled: its session's creation, its runs and the process that
        inspects it. Some loads cannot be cancelled, such as an endless node or a disk that does not
        answer. Such a load is abandoned: its thread continues, and closes its result when it ends.
        The version is not loaded again before that.
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
        """Wait for a place and load a version; return it and the seconds that the load took.

        version: The model and the number. A version must have only one load at a time.
        open_version: Loads it, on a thread.
        token: Cancels the load.
        seconds: Time limit, which excludes waiting for other loads.

        Cancelling this call cancels the load. Raises LoadFailed, and as `open_version`.
        """
        if version in self._left:
            raise LoadFailed(
                "an earlier load could not be cancelled and is still running; the version is "
                "loaded again after that, or when the server is restarted",
                transient=True,
            )
        async with self._place():
            began = monotonic()
            outcome = self._start(version, open_version)
            try:
                await self._wait(version, outcome, token, seconds)
            except asyncio.CancelledError:
                outcome.add_done_callback(_close)
                token.cancel("it is no longer wanted")
                await asyncio.wait({outcome}, timeout=ENDING_SECONDS)
                raise
            finally:
                if not outcome.done():
                    self._left.add(version)
                    outcome.cancel()
            return outcome.result(), monotonic() - began

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        """Hold a place inside the context, for at most LONG_SECONDS."""
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
                log.warning("an abandoned load has ended", model=version[0], version=version[1])
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
            except Exception as error:  # noqa: BLE001 - the waiting task receives it
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
        """Wait for the outcome. Raises LoadTimedOut after `seconds`."""
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
            f"loading took longer than {seconds:g} s (load_timeout_s); last stage: {token.stage}"
        )
        token.cancel(reason)
        await asyncio.wait({outcome}, timeout=ENDING_SECONDS)
        if not outcome.done():
            raise LoadTimedOut(f"{reason}, which cannot be cancelled and is still running")
        if (error := outcome.exception()) is not None:
            raise LoadTimedOut(reason) from error


async def _wait_until(outcome: Outcome, until: float, token: CancellationToken) -> None:
    """Wait for the outcome until `until` on the monotonic clock, plus the time the load has waited.

    A load may wait for resources that other loads hold. That time does not count, so that many
    loads do not delay each other past the limit.
    """
    while not outcome.done() and (left := until + token.waited - monotonic()) > 0:
        await asyncio.wait({outcome}, timeout=max(left, MIN_WAIT_SECONDS))


def _close(outcome: Outcome) -> None:
    """Close a version that was opened but is not needed."""
    if not outcome.cancelled() and outcome.exception() is None:
        outcome.result().close()
