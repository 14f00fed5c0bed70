"""Whether a version's runs may execute on the event loop, and what follows from one that was slow.

Runs there are those that are expected to be short. One that takes many times as long keeps the rest
off the loop until it was timed again, on a thread: it may have been long because the machine did
something else meanwhile. The second run's time on a processor, which does not count that, decides;
before it is taken for slow, two more are made. Runs that are slow by themselves stay off the loop
until the version is loaded again, since what one input can do, it can do at any time
(docs/contributing/decisions/0010).
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
"""The longest that a run is timed once more."""

CHECK_RUNS = 3
"""How often, where it was slow again: a virtual machine counts time that others took as its own."""


RunResult = tuple[Outputs | None, CohortError | None]
"""The outputs of a run in the model's order and None, or None and the error."""


class InlineRuns:
    """The runs of one version on the event loop.

    allowed: Whether short runs may execute there now.
    unpredictable: Why the duration of a run cannot be estimated; "" where it can.
    current: The run in progress, for the watchdog.

    device: The device of the runs; only those on "cpu" may.
    runner: Runs the model once more.
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
        """Run the model here, which is `started` now: its outputs, or its error, and the seconds.

        None where the watchdog stopped the run, and a thread must execute it.
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
        """Leave for a check after a run of so many `seconds`; whether the watchdog stopped it.

        `error` is what the run failed with, if it did.
        """
        stopped = error is not None and self.current.running is not self.current.control
        self.leave_for_check(feeds, seconds, stopped=stopped)
        return stopped

    def leave_for_check(self, feeds: Arrays, seconds: float, *, stopped: bool) -> None:
        """Allow none until a thread has run `feeds` again, after a run of so many `seconds`.

        `stopped` is whether the watchdog stopped it.
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
        """Allow runs again, or no more, by the processor time of the fastest run since."""
        if seconds <= STALL_SECONDS:
            self.allowed = True
            return
        limit = STALL_SECONDS * 1000
        self.unpredictable = (
            f"a run on the event loop took {seconds * 1000:.3g} ms, more than {limit:g} ms"
        )
        emit(self._observe, LeftLoop(self.unpredictable))
