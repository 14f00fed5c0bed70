"""Measures versions in idle moments, one at a time, while they serve."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import structlog

from cohort.onnx_engine.idle_runs import IdleRuns, RunSlots
from cohort.onnx_engine.measurement import Measurement
from cohort.profiling import ProfileResult
from cohort.scheduling import RunQueue
from cohort.session import Session, lower_priority

log = structlog.get_logger("cohort.registry")

ATTEMPTS = 5
"""How often the measurement of a version is begun."""

RETRY_SECONDS = 300.0
"""How long after an attempt that came to nothing the next one begins; each time twice as long."""


class MeasuredVersion(NamedTuple):
    """What was measured.

    found: The profile.
    exclusive: A session for the exclusive runs that it asks for; None where it asks for none.
    final: Whether no other run disturbed it.
    """

    found: ProfileResult
    exclusive: Session | None
    final: bool


class Measurable(Protocol):
    """A version that serves and can be measured meanwhile.

    closed: Whether it serves no more.
    timeout: The longest that a request may take, in seconds.
    measurement: Measures it; None where it cannot be measured.
    """

    closed: bool
    timeout: float

    @property
    def measurement(self) -> Measurement | None: ...

    def adopt(self, measured: MeasuredVersion) -> None:
        """Serve by what was measured from now on."""


@dataclass(slots=True)
class _Job:
    """A version to measure.

    name: The model and version, for the log.
    version: The version.
    fresh: Whether a kept profile does not count.
    adopted: Called once it has adopted what was measured.
    failed: Called with the reason where an attempt came to nothing, and the seconds until the next
        one; None: there is none.
    attempts: How often its measurement was begun.
    """

    name: tuple[str, int]
    version: Measurable
    fresh: bool
    adopted: Callable[[], None]
    failed: Callable[[str, float | None], None]
    attempts: int = 0


class Measurer:
    """Measures versions in idle moments. Its methods are called on the event loop.

    One thread waits for idle moments while there is something to measure; nothing waits for it.

    wake: Called with a queue that has requests: `Scheduler.wake`.
    started: Returns how many runs were started so far: `Scheduler.started`.
    """

    def __init__(self, *, wake: Callable[[RunQueue], None], started: Callable[[], int]) -> None:
        self._wake, self._started = wake, started
        self._jobs: deque[_Job] = deque()
        self._busy = self._closed = False

    def measure(
        self,
        model: str,
        number: int,
        version: Measurable,
        adopted: Callable[[], None],
        failed: Callable[[str, float | None], None],
        *,
        fresh: bool = False,
    ) -> None:
        """Measure a version, after those before it.

        adopted: Called once it serves by what was measured.
        failed: Called with the reason where an attempt came to nothing, and the seconds until the
            next one; None after ATTEMPTS of them.
        fresh: Whether a kept profile does not count; default False.
        """
        if version.measurement is not None:
            self._queue(_Job((model, number), version, fresh, adopted, failed))

    def close(self) -> None:
        """Begin no more runs. Does not wait for the one in progress."""
        self._closed = True
        self._jobs.clear()

    def _queue(self, job: _Job) -> None:
        if self._closed or job.version.closed:
            return
        self._jobs.append(job)
        self._begin()

    def _begin(self) -> None:
        """Begin the next job, if there is one."""
        while self._jobs and not self._busy:
            job = self._jobs.popleft()
            if not job.version.closed and job.version.measurement is not None:
                self._busy = True
                self._start(job, job.version.measurement)

    def _start(self, job: _Job, measurement: Measurement) -> None:
        version, loop = job.version, asyncio.get_running_loop()
        runs = IdleRuns(
            RunSlots(loop, self._wake, self._started, "model {}, version {}".format(*job.name)),
            limit=version.timeout,
            closed=lambda: self._closed or version.closed,
        )
        job.attempts += 1

        def work() -> None:
            lower_priority()
            measured, problem = _measure(measurement, runs, fresh=job.fresh)
            exclusive = None if measured is None else measured.exclusive
            measurement.give_back(measurement.session, exclusive)
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._on_over, job, measured, problem)

        threading.Thread(target=work, name="cohort-measure", daemon=True).start()

    def _on_over(self, job: _Job, measured: MeasuredVersion | None, problem: str) -> None:
        self._busy = False
        if self._closed or job.version.closed:
            if measured is not None and measured.exclusive is not None:
                measured.exclusive.close()
        elif measured is not None:
            job.version.adopt(measured)
            job.adopted()
        if measured is None:
            self._retry(job, "version could not be measured", problem)
        elif not measured.final:
            self._retry(job, "version was measured under load", "the server was never idle")
        self._begin()

    def _retry(self, job: _Job, event: str, reason: str) -> None:
        """Begin anew, but only after some time, and some times only. `event` is what to log."""
        if self._closed or job.version.closed:
            return
        again = job.attempts < ATTEMPTS
        seconds = RETRY_SECONDS * 2 ** (job.attempts - 1)
        if again:
            asyncio.get_running_loop().call_later(seconds, self._queue, job)
        job.failed(reason, seconds if again else None)
        log.warning(
            event,
            model=job.name[0],
            version=job.name[1],
            reason=reason,
            again_after_seconds=seconds if again else None,
        )


def _measure(
    measurement: Measurement, runs: IdleRuns, *, fresh: bool
) -> tuple[MeasuredVersion | None, str]:
    """Measure on this thread: what was found, or the problem."""
    try:
        found = measurement.fully(runs, fresh=fresh)
        exclusive = measurement.open_exclusive(found, runs.of)
    except Exception as error:  # noqa: BLE001 - the version serves without it
        return None, str(error) or type(error).__name__
    return MeasuredVersion(found, exclusive, final=not runs.disturbed), ""
