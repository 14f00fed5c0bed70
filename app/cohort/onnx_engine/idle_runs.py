"""Runs of a model in idle moments, for a measurement.

Each is a special request to the scheduler. It starts only while no other request waits for the
device and no other run is in progress there. A run that was disturbed is repeated.

A server that is never idle would never be measured, and one without batching is rarely idle. So
after some time, a run is queued like any request; only one at a time, and rarely.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic, thread_time
from typing import Any

from cohort.batching import Batcher, BatchPolicy, Outputs, RunFeeds, Ticket, ignore
from cohort.errors import CohortError, InferenceFailed
from cohort.profiling import OutOfTime
from cohort.scheduling import RunQueue
from cohort.session import Session
from cohort.tensors import Arrays

PATIENCE_SECONDS, PATIENCE_RUNS = 1.0, 10.0
"""Minimum wait of a run for an idle moment, in seconds and as a multiple of the longest run.

Once a run was disturbed, the others wait only for the multiple. So a measurement uses at most one
in eleven seconds of a slot that is never idle.
"""

PAUSE_SECONDS = 0.05
"""Pause before the next attempt of a run."""

CHECK_RUN_SECONDS = 0.2
"""Interval at which the thread that waits for a run checks for an end or a time limit."""

MAX_SECONDS = 600.0
"""Time limit of a measurement, including waiting."""

_ONE_BY_ONE = BatchPolicy(max_batch_size=1)


class Stopped(OutOfTime):
    """The version is closed, so its measurement is not needed."""


@dataclass(frozen=True, slots=True)
class RunSlots:
    """The scheduler, from which runs get their slots.

    loop: Its event loop.
    wake: Called with a queue that has requests: `Scheduler.wake`.
    started: Returns the number of runs started so far: `Scheduler.started`.
    name: The name of the runs, for operators; default "".
    """

    loop: asyncio.AbstractEventLoop
    wake: Callable[[RunQueue], None]
    started: Callable[[], int]
    name: str = ""


class IdleRuns:
    """Runs in idle moments. Implements `Runs`, on a thread that may wait.

    slots: Gives the runs their slots.
    limit: Seconds that a run may take; a longer one is stopped.
    closed: Returns whether the version is closed, or the server stops.

    disturbed: True if a run counted although other runs were in progress.
    """

    def __init__(self, slots: RunSlots, *, limit: float, closed: Callable[[], bool]) -> None:
        self.disturbed = False
        self.limit = limit
        self.closed = closed
        self._slots = slots
        self._spent = self._worked = self._longest = 0.0
        self._until = monotonic() + MAX_SECONDS

    def of(self, session: Session) -> RunFeeds:
        """See `Runs`. The function also raises Stopped."""
        return lambda feeds: self._run(session, feeds)

    def clock(self) -> float:
        """Return the total seconds of the runs."""
        return self._spent

    def processor_clock(self) -> float:
        """Return the total processor seconds of the runs."""
        return self._worked

    def check(self) -> None:
        """Raise Stopped or OutOfTime if runs must not start or be waited for."""
        if self.closed():
            raise Stopped
        if monotonic() > self._until:
            raise OutOfTime(f"it took longer than {MAX_SECONDS:g} s")

    def _run(self, session: Session, feeds: Arrays) -> Outputs:
        patience = 0.0 if self.disturbed else PATIENCE_SECONDS
        patient_until = monotonic() + max(patience, PATIENCE_RUNS * self._longest)
        while True:
            self.check()
            patient = monotonic() < patient_until
            turn = _Turn(session, feeds, self._slots, patient=patient, closed=self.closed)
            turn.take(self, patient_until)
            turn.let_go()
            self._longest = max(self._longest, turn.seconds)
            if turn.error is not None and not turn.refused:
                raise turn.error
            if turn.outputs is not None and (not turn.disturbed or not turn.patient):
                break
            threading.Event().wait(PAUSE_SECONDS)
        self.disturbed |= turn.disturbed
        self._spent += turn.seconds
        self._worked += turn.worked
        return turn.outputs


class _Turn:
    """One run, from the request for a slot to its end.

    patient: True if it starts only in an idle moment.
    refused: True if a slot was free, but another run was in progress.
    disturbed: True if other runs were in progress, or started during the run.
    seconds, worked: The duration of the run, by the clock and in processor time.
    outputs, error: The result of the run.
    """

    def __init__(
        self,
        session: Session,
        feeds: Arrays,
        slots: RunSlots,
        *,
        patient: bool,
        closed: Callable[[], bool],
    ) -> None:
        self.patient = patient
        self.refused = self.disturbed = False
        self.seconds = self.worked = 0.0
        self.outputs: Outputs | None = None
        self.error: CohortError | None = None
        self._session, self._feeds, self._slots = session, feeds, slots
        self._closed = closed
        self._begun = 0.0  # on the monotonic clock; 0 before
        self._started_before = 0
        self._over = threading.Event()
        self._batcher: Batcher | None = None
        self._ticket: Ticket | None = None

    def take(self, runs: IdleRuns, patient_until: float) -> None:
        """Ask for the slot, and wait for the end of the run. Raises Stopped and OutOfTime."""
        self._on_loop(self._ask)
        while not self._over.wait(self._next_look(patient_until)):
            now = monotonic()
            try:
                runs.check()
                if self._begun and now - self._begun > runs.limit:
                    raise OutOfTime(f"a run took longer than {runs.limit:g} s")
            except OutOfTime:
                self._on_loop(self._leave)
                raise
            if self.patient and not self._begun and now > patient_until:
                self.patient = False
                self._on_loop(self._insist)

    def let_go(self) -> None:
        """Break the reference cycle with the batcher after the run, to free its inputs."""
        self._batcher = self._ticket = None

    def _next_look(self, patient_until: float) -> float:
        """Return the seconds until the thread's next check."""
        if self._begun or not self.patient:
            return CHECK_RUN_SECONDS
        return min(max(patient_until - monotonic(), 0.001), CHECK_RUN_SECONDS)

    def _on_loop(self, call: Callable[[], None]) -> None:
        try:
            self._slots.loop.call_soon_threadsafe(call)
        except RuntimeError:  # the loop is closed
            raise Stopped from None

    # -- on the event loop

    def _ask(self) -> None:
        self._batcher = Batcher(
            self._run_beside,
            _ONE_BY_ONE,
            wake=self._slots.wake,
            observe=ignore,  # metrics count the runs of callers' own requests only
            run_exclusively=self._run_alone,
            make_control=self._session.control,
            device=self._session.device,
            shadow=self.patient,
            unpredictable="it is a measurement",  # never on the event loop or the express slot
            name=self._slots.name,
        )
        self._ticket = self._batcher.submit(self._feeds, self._reply)

    def _insist(self) -> None:
        """Queue the run like any request, for the next free slot."""
        if self._batcher is not None and not self._over.is_set():
            self._batcher.shadow = False
            self._slots.wake(self._batcher)

    def _leave(self) -> None:
        if self._ticket is not None:
            self._ticket.cancel()

    def _reply(self, outputs: Outputs | None, error: CohortError | None) -> None:
        self.disturbed |= self._slots.started() != self._started_before
        self.outputs, self.error = outputs, error
        self._over.set()

    # -- on the thread of the slot

    def _run_alone(self, feeds: Arrays, control: Any) -> Outputs:
        self._started_before = self._slots.started()
        self._begun = monotonic()
        if self._closed():
            raise InferenceFailed("the version is closed", blames_input=False)
        started = thread_time()
        try:
            return self._session.run(feeds, control)
        finally:
            self.seconds, self.worked = monotonic() - self._begun, thread_time() - started

    def _run_beside(self, feeds: Arrays, control: Any) -> Outputs:
        if self.patient:
            self.refused = True
            raise InferenceFailed("another run is in progress", blames_input=False)
        self.disturbed = True
        return self._run_alone(feeds, control)
