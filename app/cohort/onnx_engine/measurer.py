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
"""Maximum number of attempts to measure a version."""

RETRY_SECONDS = 300.0
"""Delay before the second attempt after a failed one; doubled for each further attempt."""


class MeasuredVersion(NamedTuple):
    """The result of a measurement.

    found: The profile.
    exclusive: A session for exclusive runs on several threads; None if one thread is used.
    final: True if no other run disturbed it.
    """

    found: ProfileResult
    exclusive: Session | None
    final: bool


class Measurable(Protocol):
    """A version that can be measured while it serves.

    closed: True once it no longer serves.
    timeout: The maximum duration of a request, in seconds.
    measurement: Measures it; None if it cannot be measured.
    """

    closed: bool
    timeout: float

    @property
    def measurement(self) -> Measurement | None: ...

    def adopt(self, measured: MeasuredVersion) -> None:
        """Use the result of the measurement from now on."""


@dataclass(slots=True)
class _Job:
    """A version to measure.

    name: The model and version, for the log.
    version: The version.
    fresh: True to ignore a kept profile.
    adopted: Called once the version has adopted the result.
    failed: Called with the reason of a failed attempt and the seconds until the next one, or None
        if there is no further attempt.
    attempts: The number of attempts so far.
    """

    name: tuple[str, int]
    version: Measurable
    fresh: bool
    adopted: Callable[[], None]
    failed: Callable[[str, float | None], None]
    attempts: int = 0


class Measurer:
    """Measures versions in idle moments. Its methods are called on the event loop.

    While a version must be measured, one thread waits for idle moments; no other code waits for it.

    wake: Called with a queue that has requests: `Scheduler.wake`.
    started: Returns the number of runs started so far: `Scheduler.started`.
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
        """Queue a version to be measured after those queued before.

        adopted: Called once the version has adopted the result.
        failed: Called with the reason of a failed attempt and the seconds until the next one, or
            None after ATTEMPTS attempts.
        fresh: True to ignore a kept profile; default False.
        """
        if version.measurement is not None:
            self._queue(_Job((model, number), version, fresh, adopted, failed))

    def close(self) -> None:
        """Start no more runs. Does not wait for the one in progress."""
        self._closed = True
        self._jobs.clear()

    def _queue(self, job: _Job) -> None:
        if self._closed or job.version.closed:
            return
        self._jobs.append(job)
        self._begin()

    def _begin(self) -> None:
        """Start the next job, if there is one."""
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
        """Queue the job again after a delay, up to ATTEMPTS attempts. `event` is the log event."""
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
    """Measure on this thread; return the result, or None and the problem."""
    try:
        found = measurement.fully(runs, fresh=fresh)
        exclusive = measurement.open_exclusive(found, runs.of)
    except Exception as error:  # noqa: BLE001 - the version serves without it
        return None, str(error) or type(error).__name__
    return MeasuredVersion(found, exclusive, final=not runs.disturbed), ""
