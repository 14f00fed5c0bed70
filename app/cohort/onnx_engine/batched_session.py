"""The engine of an ONNX model: an open session, and the batcher of its requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Self

from cohort.batching import (
    FIRST_AXIS,
    Batcher,
    BatchObserver,
    FilledRuns,
    InlineRun,
    OutputLimit,
    Reply,
    RowPlan,
    Run,
    Stacking,
    Ticket,
    aligned_runs,
    ignore,
)
from cohort.onnx_engine.measurement import Measurement
from cohort.onnx_engine.measurer import MeasuredVersion
from cohort.onnx_engine.pace_check import PaceCheck
from cohort.onnx_engine.preparation import PreparedVersion
from cohort.onnx_engine.rechecks import Rechecks
from cohort.onnx_engine.side_queue import EngineSideQueue
from cohort.profiling import MEASURING, ProfileResult, plan_rows
from cohort.profiling.exactness import Exactness
from cohort.registry import BatchingDescription, EngineDescription, LeaseCount, RequestQueue
from cohort.scheduling import INLINE_SECONDS, RunQueue
from cohort.session import AssignedNode, Session, metadata_labels
from cohort.tensors import Arrays, TensorSpec

OPTIONAL_SET = "the request sets optional inputs"
"""Why a run's duration is unknown: only runs with the model's defaults were measured."""

SHADOW_DELAY_MS = 20.0
"""Delay of shadow requests, in milliseconds: shared runs take less time per request."""

FORMER_SECONDS = 15.0
"""Interval, from a measurement on, of checks that close former sessions for exclusive runs.

Queued copies of requests may wait for such a session that long.
"""


class BatchedSession:
    """An open session with its batcher. Implements `BatchEngine`.

    closed: True if it was closed.
    unbatched: True if batching was disabled under load, permanently.

    prepared: The version as it was opened, checked and profiled; closed with this engine.
    wake: Called with a queue that has requests: `Scheduler.wake`.
    observe: Called with each BatchEvent of the batcher, but not those of side queues.
    inline_run: Records runs on the event loop for the watchdog; default: no record.
    rechecks: Runs requests that shared a run again alone; default None: no rechecks.
    name: The model and version, for operators; default "".
    """

    __slots__ = (
        "__weakref__",
        "_batcher",
        "_former",
        "_inline_pace",
        "_inline_run",
        "_observe",
        "_pace_check",
        "_prepared",
        "_run",
        "_run_alone",
        "_sampler",
        "_single",
        "_wake",
        "closed",
        "example",
        "example_outputs",
        "inputs",
        "labels",
        "leases",
        "name",
        "optional_inputs",
        "outputs",
        "run_now",
        "timeout",
        "unbatched",
    )  # fmt: skip

    def __init__(
        self,
        prepared: PreparedVersion,
        *,
        wake: Callable[[RunQueue], None],
        observe: BatchObserver,
        inline_run: InlineRun | None = None,
        rechecks: Rechecks | None = None,
        name: str = "",
    ) -> None:
        session = prepared.session
        self.closed = self.unbatched = False
        self._prepared = prepared
        self._wake = wake
        self._observe = observe
        self._inline_run = inline_run
        self.name = name
        self._pace_check = PaceCheck()
        self.timeout = prepared.timeout
        self._sampler = None if rechecks is None else rechecks.sampler(self, name)
        self._batcher = self._make_batcher()
        self._single: Batcher | None = None  # for requests that set optional inputs
        self._former: list[tuple[Batcher, Session | None]] = []  # until their requests end
        self.leases = LeaseCount()
        self.inputs: Sequence[TensorSpec] = session.inputs
        self.optional_inputs: Sequence[TensorSpec] = session.optional_inputs
        self.outputs: Sequence[TensorSpec] = session.outputs
        self.labels: Sequence[str] = metadata_labels(session.metadata.properties)
        self.example, self.example_outputs = prepared.example, prepared.answer

    def _make_batcher(self) -> Batcher:
        prepared = self._prepared
        session, exclusive = prepared.session, prepared.exclusive
        profile = prepared.profile_result.profile
        known = profile.complete or prepared.policy.batches
        policy = prepared.policy
        stacking = self.stacking
        self._run_alone: Run = aligned_runs(session.run) if policy.exact else session.run
        self._run: Run = self.as_served(session.run)
        batcher = Batcher(
            self._run,
            policy,
            wake=self._wake,
            observe=self._observe,
            run_exclusively=None if exclusive is None else exclusive.run,
            make_control=session.control,
            seconds_for=lru_cache(1024)(profile.seconds_for),
            known_work=max(profile.seconds, default=float("inf")),
            row_cost=profile.row_cost(prepared.policy),
            device=session.device,
            stacking=stacking,
            unpredictable=session.unpredictable or ("" if known else MEASURING),
            output_limit=_limit_for(stacking, prepared.output_limit),
            inline_run=self._inline_run,
            sampler=self._sampler if policy.batches and policy.trust != "refuted" else None,
            name=self.name,
        )
        self.run_now = batcher.run_now
        self._inline_pace = -1.0  # maximum pace for full batches on the loop
        if policy.batches and not policy.max_queue_delay_ms and stacking is FIRST_AXIS:
            full = profile.seconds_for(policy.max_batch_size)
            self._inline_pace = INLINE_SECONDS / max(full, 1e-9)
        return batcher

    @property
    def by_tensors(self) -> Self:
        """This engine itself: its requests are tensors."""
        return self

    @property
    def session(self) -> Session:
        """The open session."""
        return self._prepared.session

    def as_served(self, run: Run) -> Run:
        """Return `run` as requests use it: with filling and alignment, if needed."""
        policy, profile = self._prepared.policy, self._prepared.profile_result.profile
        filled = profile.filled_rows if policy.batches or policy.exact else 0
        run = aligned_runs(run) if policy.exact else run
        return FilledRuns(run, filled, self.stacking).run if filled else run

    @property
    def why_not_exact(self) -> str:
        """Why requests may get other bits than alone; "" if no run is known to do that."""
        return self._prepared.profile_result.why_not_exact(self._batcher.policy, self.session.rows)

    def note_other_bits(self, reason: str) -> None:
        """Record that requests do not always get the same bits as alone."""
        found = replace(self._prepared.profile_result, exactness=Exactness(0, reason))
        self._prepared = replace(self._prepared, profile_result=found)

    @property
    def exact(self) -> bool:
        """True if callers are promised the same bits as alone (`batching.exact`)."""
        return self._prepared.policy.exact

    @property
    def stacking(self) -> Stacking:
        """The way that requests are joined: with padding, or along the proven axes of rows."""
        session, padding = self._prepared.session, self._prepared.profile_result.padding
        stacking = plan_rows(session.inputs, session.outputs, session.rows)
        return padding if stacking is FIRST_AXIS and padding.inputs else stacking

    @property
    def waiting(self) -> int:
        """The number of queued requests."""
        single = 0 if self._single is None else self._single.waiting
        return self._batcher.waiting + single + sum([former.waiting for former, _ in self._former])

    @property
    def profile(self) -> ProfileResult:
        """The measured profile of the version."""
        return self._prepared.profile_result

    @property
    def measurement(self) -> Measurement | None:
        """The measurement of the version; None if it cannot be measured."""
        return self._prepared.measurement

    def check_pace(self, now: float) -> str:
        """Return the reason to measure again, once per stale profile; "" if there is no reason.

        `now` is in seconds on the monotonic clock.
        """
        prepared, found = self._prepared, self._prepared.profile_result
        unpredictable = prepared.session.unpredictable
        if prepared.measurement is None or not found.complete or unpredictable:
            return ""
        profiled = found.profile.seconds_for(1)
        reason = self._pace_check.check(self._batcher.seconds_for(1) / profiled, profiled, now)
        if reason:
            stale = replace(found, stale_reason=reason)
            self._prepared = replace(prepared, profile_result=stale)
        return reason

    def adopt(self, measured: MeasuredVersion) -> None:
        """Use the measurement from the next request on; earlier requests finish as they are.

        Findings of served requests stay in force. They show that rows of outputs do not match rows
        of inputs, or that runs are too long for the event loop.
        """
        before, exclusive, former = self._batcher, self._prepared.exclusive, self.profile
        after = measured.found.profile.seconds_for(1)
        self._pace_check.remeasured(former.profile.seconds_for(1), after)
        self.unbatched |= self._prepared.policy.batches and not before.policy.batches
        self._prepared = self._prepared.profiled(measured.found, measured.exclusive)
        if self.unbatched:
            self._prepared = replace(self._prepared, policy=self._prepared.policy.unbatched())
        self._batcher = self._make_batcher()
        if (reason := before.inline.unpredictable) not in ("", MEASURING):
            self._batcher.inline.unpredictable, self._batcher.inline.allowed = reason, False
        self._former.append((before, exclusive))
        asyncio.get_running_loop().call_later(FORMER_SECONDS, self._close_former)

    def forbid_batching(self, reason: str) -> None:
        """Run requests one by one from now on; the registry keeps that over restarts."""
        if self._batcher.policy.batches:
            self._batcher.disable_batching(reason)

    def _close_former(self) -> None:
        """Close former sessions for exclusive runs once their requests have ended."""
        if self.closed:
            return
        busy = []
        for batcher, exclusive in self._former:
            if not batcher.idle:
                busy.append((batcher, exclusive))
            elif exclusive is not None:
                exclusive.close()
        self._former = busy
        if busy:
            asyncio.get_running_loop().call_later(FORMER_SECONDS, self._close_former)

    def check_room(self, priority: int) -> None:
        """Raise Overloaded if no request of one row with this priority may be queued."""
        self._batcher.check_room(priority)

    def room_for(self, priority: int) -> int:
        """Return the number of requests of one row with this priority that may still be queued."""
        return self._batcher.room_for(priority)

    @property
    def inline_rows(self) -> int:
        """The maximum number of rows of a run by `run_now`; see `BatchEngine`."""
        batcher = self._batcher
        if batcher.estimate.own_pace <= self._inline_pace and batcher.inline.allowed:
            return batcher.policy.max_batch_size  # 1 if batching is off
        return 1

    def submit(
        self,
        inputs: Arrays,
        reply: Reply,
        *,
        deadline: float = float("inf"),
        timeout: float | None = None,
        requests: int = 1,
        priority: int = 0,
    ) -> Ticket:
        """Queue a request; see `BatchEngine`."""
        batcher = self._batcher
        if len(inputs) > len(self.inputs):
            batcher = self._single = self._single or self._make_single_batcher()
        return batcher.submit(
            inputs,
            reply,
            deadline=deadline,
            timeout=timeout,
            requests=requests,
            priority=priority,
        )

    def _make_single_batcher(self) -> Batcher:
        """Make the batcher for requests that set optional inputs; their runs were not measured."""
        prepared = self._prepared
        session = prepared.session
        return Batcher(
            self._run_alone,
            prepared.policy.unbatched(),
            wake=self._wake,
            observe=self._observe,
            make_control=partial(session.control, shrink=True),
            device=session.device,
            unpredictable=OPTIONAL_SET,
            output_limit=replace(prepared.output_limit, measured=True),
            name=self.name,
        )

    def side_queue(self, *, max_requests: int, shadow: bool) -> RequestQueue:
        """Open another queue on the same session; see `BatchEngine`."""
        make = partial(self._make_side_batcher, max_requests, shadow)
        return EngineSideQueue(lambda: self._batcher, make, len(self.inputs))

    def _make_side_batcher(self, max_requests: int, shadow: bool, *, single: bool) -> Batcher:
        session, exclusive, own = self._prepared.session, self._prepared.exclusive, self._batcher
        profile = self._prepared.profile_result.profile
        policy = replace(own.policy, max_queue_size=max_requests, max_queue_delay_ms=0)
        if shadow:
            # A batch is full at half the queue: while it runs, the other half takes new requests.
            rows = min(policy.max_batch_size, max_requests // 2)
            policy = replace(policy, max_batch_size=rows, max_queue_delay_ms=SHADOW_DELAY_MS)
        if single:
            policy = policy.unbatched()
        return Batcher(
            self._run_alone if single else self._run,
            policy,
            wake=self._wake,
            observe=ignore,  # metrics count the runs of callers' own requests only
            run_exclusively=None if shadow or exclusive is None else exclusive.run,
            make_control=session.control,
            seconds_for=profile.seconds_for,
            known_work=max(profile.seconds, default=float("inf")),
            row_cost=own.row_cost,
            device=session.device,
            shadow=shadow,
            stacking=own.stacking,
            unpredictable=OPTIONAL_SET if single else own.inline.unpredictable,
            output_limit=_limit_for(own.stacking, self._prepared.output_limit),
            inline_run=self._inline_run,
            name=self._batcher.name,
        )

    def describe(self) -> EngineDescription:
        """Describe the session and its batching as they are now."""
        session = self._prepared.session
        return EngineDescription(
            session.metadata,
            session.placement,
            session.device,
            self._prepared.files,
            self._prepared.published,
            BatchingDescription(
                self._batcher.policy,
                self._prepared.profile_result,
                self._batcher.inline.unpredictable,
                session.rows,
            ),
            memory_bytes=self._prepared.memory_bytes,
            made_up=self._prepared.made_up,
        )

    def assigned_nodes(self) -> Iterable[AssignedNode]:
        """The nodes of the model, each with the provider that runs it."""
        return self._prepared.session.assigned_nodes()

    def close(self) -> None:
        """Fail queued requests with NotReady and close the session. Runs in flight finish."""
        self.closed = True
        if self.measurement is not None:
            self.measurement.stop()
        self._batcher.close()
        if self._single is not None:
            self._single.close()
        self._prepared.close()
        for batcher, exclusive in self._former:
            batcher.close()
            if exclusive is not None:
                exclusive.close()


def _limit_for(stacking: Stacking, limit: OutputLimit) -> OutputLimit:
    """Return `limit`; measure outputs after the run if rows may not be along axis 0."""
    return OutputLimit(limit.max_bytes, measured=True) if isinstance(stacking, RowPlan) else limit
