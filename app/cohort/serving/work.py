"""Work of a request that runs on threads and continues on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

T = TypeVar("T")


class WorkElsewhere:
    """A request that runs its work on threads, one piece at a time.

    left: True if no caller waits for it; it does not continue.
    """

    left = False
    _work: asyncio.Future[Any] | None = None

    def fail(self, error: Exception) -> None:
        """Answer with an error."""
        raise NotImplementedError

    def _run_in(
        self,
        executor: Executor | None,
        work: Callable[..., T],
        *arguments: object,
        then: Callable[[T], None],
        failed: Callable[[Exception], None] | None = None,
        ends: Callable[[], None] | None = None,
    ) -> None:
        """Run `work` on a thread, and continue with `then`, as `_after` does."""
        running = asyncio.get_running_loop().run_in_executor(executor, work, *arguments)
        self._after(running, then, failed, ends)

    def _after(
        self,
        work: asyncio.Future[T],
        then: Callable[[T], None],
        failed: Callable[[Exception], None] | None = None,
        ends: Callable[[], None] | None = None,
    ) -> None:
        """Continue with the result of `work`, unless the request was left.

        failed: Receives the error that `work` raised; default: `fail`.
        ends: Called once `work` has ended, also if the request was left.
        """

        def done(future: asyncio.Future[T]) -> None:
            if ends is not None:
                ends()
            self._work = None
            if self.left:
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

    def _stop_work(self) -> None:
        """Stop the current work and do not continue."""
        self.left = True
        if self._work is not None:
            self._work.cancel()
