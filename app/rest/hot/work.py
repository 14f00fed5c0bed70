"""What a request has done on threads, and goes on with on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, Protocol, TypeVar

from app.codec.codec_thread import codec_thread

T = TypeVar("T")


class OnLoop(Protocol):
    """What runs on an event loop."""

    loop: asyncio.AbstractEventLoop


class WorkElsewhere:
    """A request that has work done for it, one piece at a time.

    disconnected: Whether its connection was lost: then it does not go on.
    """

    protocol: OnLoop
    disconnected = False
    _work: asyncio.Future[Any] | None = None

    def fail(self, error: Exception) -> None:
        """Answer with an error."""
        raise NotImplementedError

    def _on_thread(
        self,
        work: Callable[..., T],
        *arguments: object,
        then: Callable[[T], None],
        failed: Callable[[Exception], None] | None = None,
        ends: Callable[[], None] | None = None,
    ) -> None:
        thread = codec_thread.later_stage if ends is None else codec_thread.first_stage
        self._run_in(thread, work, *arguments, then=then, failed=failed, ends=ends)

    def _run_in(
        self,
        executor: Executor | None,
        work: Callable[..., T],
        *arguments: object,
        then: Callable[[T], None],
        failed: Callable[[Exception], None] | None = None,
        ends: Callable[[], None] | None = None,
    ) -> None:
        running = self.protocol.loop.run_in_executor(executor, work, *arguments)
        self._after(running, then, failed, ends)

    def _after(
        self,
        work: asyncio.Future[T],
        then: Callable[[T], None],
        failed: Callable[[Exception], None] | None = None,
        ends: Callable[[], None] | None = None,
    ) -> None:
        """Go on with the result of `work`, unless the connection is lost by then."""

        def done(future: asyncio.Future[T]) -> None:
            if ends is not None:
                ends()
            self._work = None
            if self.disconnected:
                return
            error = future.exception()
            if isinstance(error, Exception):
                (failed or self.fail)(error)
                return
            try:
                then(future.result())
            except Exception as bug:  # noqa: BLE001 - whatever it is, the caller gets a response
                self.fail(bug)

        work.add_done_callback(done)
        self._work = work
