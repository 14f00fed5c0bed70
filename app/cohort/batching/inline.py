"""Permission for a version's runs on the event loop, and checks after a slow run.

Only runs that are expected to be short use the loop. After a run that takes many times as long, all
runs leave the loop until it was timed again on a thread. The machine may have been busy. The second
run's processor time, which excludes that, decides. Before a run counts as slow, it is repeated
twice more. If it is slow, runs stay off the loop until the version is loaded again: the same input
may return at any time (docs/contributing/decisions/0010).
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from time import monotonic, thread_time

from cohort.batching.batch import Runner, internal_failure
from cohort.batching.events import BatchObserver, InlineStall, LeftLoop, emit
from cohort.batching.stacking import Outputs
from cohort.batching.watchdog import STALL_SECONDS, InlineRun
from cohort.errors import CohortError, InferenceFailed, InvalidInput
from cohort.tensors import Arrays

CHECK_SECONDS = 1.0
"""Maximum time of a repeated run."""

CHECK_RUNS = 3
"""Maximum of repetitions while slow: a virtual machine counts time of others as its own."""


RunResult = tuple[Outputs | None, CohortError | None]
"""The outputs of a run in the model's order and None, or None and the error."""


class InlineRuns:
    """The runs of one version on the event loop.

    allowed: True if short runs may execute there now.
    unpredictable: Why the duration of a run cannot be estimated; "" if it can.
    current: The run in progress, for the watchdog.

    device: The device of the runs; only runs on "cpu" are allowed.
    runner: Repeats slow runs.
    observe: Called with each InlineStall and LeftLoop.
    """

    __slots__ = ("_observe", "_runner", "allowed", "current", "unpredictable")

    def __init__(
        self,
        current: InlineRun,
        runner: Runner,
        *,
        device: str,
        unpredictable: str,
        observe: BatchObserver,
    ) -> None:
        self.allowed = device == "cpu" and not unpredictable
        self.unpredictable = unpredictable
        self.current = current
        self._runner = runner
        self._observe = observe

    def run(
        self, inputs: Arrays, started: float
    ) -> tuple[Outputs | None, CohortError | None, float] | None:
        """Run the model here, `started` now; return the outputs or the error, and the seconds.

        Returns None if the watchdog stopped the run, so that a thread must execute it.
        """
        current = self.current
        control = current.running = current.control
        current.since = started
        outputs, error = None, None
        try:
            outputs = self._runner.run(inputs, control)
        except (InvalidInput, InferenceFailed) as failure:
            error = failure
        except Exception as bug:  # noqa: BLE001 - every request gets a reply
            error = internal_failure(bug)
        current.since = 0.0
        seconds = monotonic() - started
        if seconds > STALL_SECONDS and self.stalled(inputs, seconds, error):
            return None
        return outputs, error, seconds

    def stalled(self, feeds: Arrays, seconds: float, error: CohortError | None) -> bool:
        """Leave the loop for a check after a slow run; return True if the watchdog stopped it.

        `error` is the error of the run, if it failed.
        """
        stopped = error is not None and self.current.running is not self.current.control
        self.leave_for_check(feeds, seconds, stopped=stopped)
        return stopped

    def leave_for_check(self, feeds: Arrays, seconds: float, *, stopped: bool) -> None:
        """Allow no runs until a thread has run `feeds` again, after a run of `seconds`.

        `stopped`: True if the watchdog stopped it.
        """
        self.allowed = False
        emit(self._observe, InlineStall(seconds, stopped))
        loop = asyncio.get_running_loop()
        control = self._runner.make_control()
        if control is not None:
            loop.call_later(CHECK_SECONDS, control.stop)

        def check() -> None:
            taken = float("inf")
            for _ in range(CHECK_RUNS):
                ended, started = False, thread_time()
                with suppress(Exception):  # its callers have the error; it may have been stopped
                    self._runner.run(feeds, control)
                    ended = True
                taken = min(taken, thread_time() - started)
                if taken <= STALL_SECONDS or not ended:
                    break
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self.judge, taken)

        try:
            threading.Thread(target=check, name="cohort-check", daemon=True).start()
        except RuntimeError:  # the system has no thread for it now
            self.judge(seconds)

    def judge(self, seconds: float) -> None:
        """Allow runs again, or disallow them for good, by the fastest run's processor time."""
        if seconds <= STALL_SECONDS:
            self.allowed = True
            return
        limit = STALL_SECONDS * 1000
        self.unpredictable = (
            f"a run on the event loop took {seconds * 1000:.3g} ms, more than {limit:g} ms"
        )
        emit(self._observe, LeftLoop(self.unpredictable))
