"""Rechecks: requests that shared a run run again alone, in idle moments, and are compared.

This is the third check that rows of a model are independent, after the proof from the graph and the
experiment at load. It is the only one that uses callers' own requests.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic, thread_time
from typing import Protocol

import structlog

from cohort.batching import PadPlan, Run, RunFeeds, Sample, Stacking
from cohort.comparing import ROUNDING, SAME_BITS
from cohort.errors import CohortError
from cohort.onnx_engine.idle_runs import IdleRuns, RunSlots
from cohort.profiling import OTHER_BITS, OutOfTime, changed_output, influenced
from cohort.scheduling import RunQueue
from cohort.session import Session, lower_priority
from cohort.tensors import held_bytes

log = structlog.get_logger("cohort.registry")

SHARE = 0.005
"""Share of one core that rechecks may use, for all versions together."""

MIN_SECONDS = 1.0
"""Minimum pause between two rechecks, for all versions together."""

VERSION_SECONDS = 10.0
"""Minimum pause between two rechecks of one version."""

MAX_SAMPLE_BYTES = 16 << 20
"""Size limit of a request's inputs and outputs; one request is held at a time."""


class Rechecked(Protocol):
    """A version whose requests are run again.

    closed: True once it no longer serves.
    timeout: The maximum duration of a request, in seconds.
    session: Runs the model.
    name: The model and version, for operators.
    stacking: Joins and splits requests.
    exact: True if callers are promised the same bits as alone (`batching.exact`).
    why_not_exact: Why requests may get other bits than alone; "" if no run is known to do that.
    """

    closed: bool
    timeout: float
    name: str

    @property
    def session(self) -> Session: ...

    @property
    def stacking(self) -> Stacking: ...

    @property
    def exact(self) -> bool: ...

    @property
    def why_not_exact(self) -> str: ...

    def as_served(self, run: Run) -> Run:
        """Return `run` as requests use it: with filling and alignment, if needed."""

    def note_other_bits(self, reason: str) -> None:
        """Record that requests do not always get the same bits as alone."""

    def forbid_batching(self, reason: str) -> None:
        """Run requests one by one from now on, and after each restart."""


class Rechecks:
    """Runs requests again, one at a time. Its methods are called on the event loop.

    wake: Called with a queue that has requests: `Scheduler.wake`.
    started: Returns the number of runs started so far: `Scheduler.started`.
    """

    def __init__(self, *, wake: Callable[[RunQueue], None], started: Callable[[], int]) -> None:
        self._wake, self._started = wake, started
        self._busy = self._closed = False
        self._due = 0.0  # on the monotonic clock

    def sampler(self, version: Rechecked, name: str) -> VersionSampler:
        """Return the sampler of a version's requests; its name is for operators."""
        return VersionSampler(self, version, name)

    def close(self) -> None:
        """Start no more runs. Does not wait for the one in progress."""
        self._closed = True

    def begin(self, version: Rechecked, name: str, sample: Sample) -> bool:
        """Start to run a request again and return True, or return False if it must not start.

        It must not start if it is too large, or while another one runs or has just run.
        """
        size = sum(map(held_bytes, [*sample.inputs.values(), *sample.answer]))
        if self._closed or self._busy or monotonic() < self._due or size > MAX_SAMPLE_BYTES:
            return False
        self._busy = True
        loop = asyncio.get_running_loop()
        runs = IdleRuns(
            RunSlots(loop, self._wake, self._started, f"{name}, run again"),
            limit=version.timeout,
            closed=lambda: self._closed or version.closed,
        )

        def work() -> None:
            lower_priority()
            began = thread_time()
            reason = _recheck(runs, version, sample)
            spent = thread_time() - began + runs.processor_clock()
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._on_over, version, reason, spent)

        try:
            threading.Thread(target=work, name="cohort-recheck", daemon=True).start()
        except RuntimeError:  # the system cannot start a thread now
            self._busy = False
        return self._busy

    def _on_over(self, version: Rechecked, reason: str, spent: float) -> None:
        self._busy = False
        self._due = monotonic() + max(MIN_SECONDS, spent / SHARE)
        if not reason or version.closed:
            return
        if version.exact or not reason.startswith(OTHER_BITS):
            version.forbid_batching(reason)
        elif not version.why_not_exact:
            version.note_other_bits(reason)


@dataclass(slots=True)
class VersionSampler:
    """Takes requests of one version. Implements `Sampler`."""

    _rechecks: Rechecks
    _version: Rechecked
    _name: str
    due: float = 0.0

    def take(self, sample: Sample) -> None:
        """See `Sampler`."""
        begun = self._rechecks.begin(self._version, self._name, sample)
        self.due = monotonic() + (VERSION_SECONDS if begun else MIN_SECONDS)


def _recheck(runs: IdleRuns, version: Rechecked, sample: Sample) -> str:
    """Return why requests of the version must not share runs; "" if this one shows no reason."""
    try:
        return _compare(runs.of(version.session), version, sample)
    except (OutOfTime, CohortError):  # the run was not possible now
        return ""
    except Exception:
        log.exception("a request could not be run again")
        return ""


def _compare(run: RunFeeds, version: Rechecked, sample: Sample) -> str:
    outputs = version.session.outputs
    served = version.as_served(lambda feeds, _: run(feeds))
    alone = served(sample.inputs, None)
    changed = changed_output(outputs, alone, sample.answer, SAME_BITS)
    if not changed:
        return ""
    other_bits = f"{OTHER_BITS}: output {changed!r} of a request changes"
    again = served(sample.inputs, None)
    if not changed_output(outputs, alone, sample.answer):
        return "" if changed_output(outputs, alone, again, SAME_BITS) else other_bits
    if changed_output(outputs, alone, again):
        log.warning("a request gave different answers although it ran alone", of=version.name)
        return ""
    if not isinstance(version.stacking, PadPlan):
        proven = version.session.rows.independent
        found = influenced(run, sample, alone, outputs, version.stacking, proven=proven)
        return found or other_bits
    if changed := changed_output(outputs, alone, sample.answer, ROUNDING):
        return f"a padded run gives other results: output {changed!r} of a request changes"
    return other_bits
