"""Runs requests that shared a run again alone, in idle moments, and compares the answers.

It is the third look at whether rows of a model influence each other, after the proof from the graph
and the experiment at load; the only one at what callers really send.
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
"""Of one core, for all versions together."""

LEAST_SECONDS = 1.0
"""Between two requests of all versions together."""

VERSION_SECONDS = 10.0
"""Between two requests of one version."""

MAX_SAMPLE_BYTES = 16 << 20
"""Of the inputs and outputs of a request; there is one at a time."""


class Rechecked(Protocol):
    """A version whose requests are run again.

    closed: Whether it serves no more.
    timeout: The longest that a request may take, in seconds.
    session: Runs the model.
    name: The model and version, for operators.
    stacking: How requests are joined.
    exact: Whether callers are promised the bits that they get alone.
    why_not_exact: Why they may get others; "" where they do not, as far as is known.
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
        """Runs as requests get them: filled up, and aligned, where that is needed."""

    def note_other_bits(self, reason: str) -> None:
        """Take back that callers get the bits that they get alone."""

    def forbid_batching(self, reason: str) -> None:
        """Let requests run one by one from now on, and after each restart."""


class Rechecks:
    """Runs requests again, one at a time. Its methods are called on the event loop.

    wake: Called with a queue that has requests: `Scheduler.wake`.
    started: Returns how many runs were started so far: `Scheduler.started`.
    """

    def __init__(self, *, wake: Callable[[RunQueue], None], started: Callable[[], int]) -> None:
        self._wake, self._started = wake, started
        self._busy = self._closed = False
        self._due = 0.0  # on the monotonic clock

    def sampler(self, version: Rechecked, name: str) -> VersionSampler:
        """What takes the requests of a version; its name is for operators."""
        return VersionSampler(self, version, name)

    def close(self) -> None:
        """Begin no more runs. Does not wait for the one in progress."""
        self._closed = True

    def begin(self, version: Rechecked, name: str, sample: Sample) -> bool:
        """Run a request again, unless another one is, or was just before."""
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
        except RuntimeError:  # the system has no thread for it now
            self._busy = False
        return self._busy

    def _on_over(self, version: Rechecked, reason: str, spent: float) -> None:
        self._busy = False
        self._due = monotonic() + max(LEAST_SECONDS, spent / SHARE)
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
        self.due = monotonic() + (VERSION_SECONDS if begun else LEAST_SECONDS)


def _recheck(runs: IdleRuns, version: Rechecked, sample: Sample) -> str:
    """Why requests of the version may not share runs; "" where this one shows nothing."""
    try:
        return _compare(runs.of(version.session), version, sample)
    except (OutOfTime, CohortError):  # it is not to be had now
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
        log.warning("a request gave different answers alone, too", of=version.name)
        return ""
    if not isinstance(version.stacking, PadPlan):
        proven = version.session.rows.independent
        found = influenced(run, sample, alone, outputs, version.stacking, proven=proven)
        return found or other_bits
    if changed := changed_output(outputs, alone, sample.answer, ROUNDING):
        return f"a padded run gives other results: output {changed!r} of a request changes"
    return other_bits
