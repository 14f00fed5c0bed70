"""The profile of a version: measured, or read from the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from cohort.batching import BatchPolicy, PadPlan, plan_padding
from cohort.profiling.concurrency import ConcurrentRuns
from cohort.profiling.contradictions import report_contradiction
from cohort.profiling.exact import exact_profile, try_exactness
from cohort.profiling.exactness import Exactness
from cohort.profiling.experiment import FAILED
from cohort.profiling.kept import KeptProfile
from cohort.profiling.measurement import (
    MEASURING,
    PADDED_FAILED,
    Profile,
    measure_profile,
    pad_safely,
)
from cohort.profiling.runs import FREE_RUNS, BriefRuns, OutOfTime, Runs
from cohort.profiling.store import Store
from cohort.profiling.threads import ONE, Reopen, Threads, find_threads, may_pay, small_enough
from cohort.profiling.trial import Trial
from cohort.row_independence import RowKind, RowVerdict
from cohort.session import Opener, Session, machine, runtime_build

NO_TRIAL = Trial()

BRIEF_SECONDS = 0.5
"""Time limit for measuring a version at load, by the clock."""

FULL_SECONDS = 30.0
"""Time for timing runs of several rows in a full measurement."""


@dataclass(frozen=True, slots=True)
class ProfileResult:
    """The profile of a version on this machine.

    profile: The duration of runs, and the batch size that was chosen.
    padding: The plan that pads requests of different lengths to share a run.
    threads: The threads of exclusive runs; default one.
    concurrency: The throughput of concurrent runs; default none: not measured.
    measured: The time of the measurement, in UTC and ISO 8601.
    kept: True if it was read from the store; default False: it was measured now.
    complete: True if everything was measured; default True.
    exactness: The result of comparing bits alone and in shared runs; default None: not tried yet.
    stale_reason: Why it must be measured again; default "": no reason is known.
    mixed: Why served requests show that the version must not batch; default "": they do not.
    """

    profile: Profile
    padding: PadPlan
    threads: Threads = ONE
    concurrency: tuple[ConcurrentRuns, ...] = ()
    measured: str = ""
    kept: bool = False
    complete: bool = True
    exactness: Exactness | None = None
    stale_reason: str = ""
    mixed: str = ""

    def why_not_exact(self, policy: BatchPolicy, rows: RowVerdict) -> str:
        """Return why requests may get other bits than alone; "" if no tried run showed it.

        policy: The batch policy of the version, as it serves now.
        rows: The verdict on the independence of rows.
        """
        if rows.kind is RowKind.RANDOM or (policy.batches and not rows.independent):
            return str(rows)
        if self.threads.chosen > 1:
            threads = self.threads.chosen
            return f"a run takes {threads} threads while there is no other, and may round otherwise"
        if not policy.batches or policy.exact:
            return ""
        if self.padding.inputs:
            return "padded runs may round otherwise"
        if self.exactness is None:
            return MEASURING
        filled = 0 < self.exactness.least_rows <= self.profile.filled_rows
        return "" if filled and not self.exactness.only_aligned else self.exactness.reason


def key_for(
    opener: Opener, session: Session, batching: BatchPolicy, trial: Trial = NO_TRIAL
) -> dict[str, str]:
    """Return a description of everything that the profile of `session` depends on.

    opener: The opener of `session`.
    trial: The inputs of its runs; default: made without an example.

    Raises OSError if the files can no longer be read.
    """
    batching_key = (
        f"max_batch_size={batching.max_batch_size} latency_budget_ms={batching.latency_budget_ms} "
        f"trust={batching.trust} exact={batching.exact} pad={sorted(batching.pad.items())!r}"
    )
    return {
        "model": opener.digest(),
        "machine": machine(),
        "runtime": runtime_build(),
        "provider": f"{session.placement.active} {session.device}",
        "providers": f"{opener.policy} {list(opener.chain)!r}",
        "session": repr(opener.options),
        "batching": batching_key,
        "rows": f"{session.rows.kind} {session.rows}",
        **({} if trial.like is None else {"example": trial.describe_like()}),
    }


def reopening(opener: Opener, batching: BatchPolicy) -> Reopen | None:
    """Return a function that opens the model again for exclusive runs, on several threads.

    Returns None if the config or the model's size rules it out. `batching.exact` does, because
    another number of threads may round differently.
    """
    ruled_out = opener.options.intra_op_threads is not None or batching.exact
    return None if ruled_out or not small_enough(opener.path) else opener.open


def profile_model(
    opener: Opener,
    session: Session,
    trial: Trial,
    batching: BatchPolicy,
    store: Store | None = None,
    *,
    fresh: bool = False,
    runs: Runs = FREE_RUNS,
) -> ProfileResult:
    """Read the profile of a session from the store, or measure and keep it.

    opener: Opened the session, and opens others to measure exclusive runs.
    session: The session to measure.
    trial: The inputs of its runs.
    batching: The batch policy of the model's config.
    store: The store of kept profiles; default None: measure, and keep nothing.
    fresh: True to measure even if there is a kept profile; default False.
    runs: Makes the runs; default: at once. The result of disturbed runs is not kept.
    """
    key = None if store is None else _key(opener, session, batching, trial)
    if store is not None and key is not None and not fresh:
        found = _recall(store, key, session, batching)
        if found is not None:
            return found
    found = _measure(opener, session, trial, batching, runs)
    if runs.disturbed:
        return replace(found, threads=ONE)  # the disturbing run used the other cores
    if store is not None and key is not None:
        keep(store, key, found)
    return found


def profile_briefly(
    opener: Opener,
    session: Session,
    trial: Trial,
    batching: BatchPolicy,
    store: Store | None = None,
    *,
    seconds: float = BRIEF_SECONDS,
) -> ProfileResult:
    """Read the profile of a session from the store, or measure it for at most `seconds`.

    The arguments are those of `profile_model`. Measurements that take longer are skipped. Threads
    are not measured, because no other run may be in progress for that. A result that lacks a
    measurement is not complete, and not kept. If several processes do this at the same time, one
    measures.
    """
    key = None if store is None else _key(opener, session, batching, trial)
    if store is None or key is None:
        return _measure_briefly(opener, session, trial, batching, seconds)
    if found := _recall(store, key, session, batching):
        return found
    with store.locked(key):
        if found := _recall(store, key, session, batching):
            return found
        found = _measure_briefly(opener, session, trial, batching, seconds)
        keep(store, key, found)
    return found


def keep(store: Store, key: Mapping[str, str], found: ProfileResult) -> None:
    """Keep `found` if it is complete and no measurement failed.

    A failure may have had other causes than the model.
    """
    failed = not found.complete or found.profile.reason.startswith(FAILED)
    if failed or not found.profile.seconds or found.padding.reason.startswith(PADDED_FAILED):
        return
    kept = KeptProfile(
        found.measured,
        dict(found.profile.seconds),
        found.profile.max_batch_size,
        found.profile.reason,
        found.padding.reason,
        found.profile.row_elements,
        found.threads,
        found.concurrency,
        found.profile.change_seconds,
        found.exactness,
    )
    store.write(key, kept)


def _key(
    opener: Opener, session: Session, batching: BatchPolicy, trial: Trial
) -> dict[str, str] | None:
    """Return the key, or None if the files are no longer those that were opened."""
    with suppress(OSError):  # for example, the model was deleted after it was opened
        key = key_for(opener, session, batching, trial)
        return key if opener.unchanged() else None
    return None


def _measure(
    opener: Opener, session: Session, trial: Trial, batching: BatchPolicy, runs: Runs
) -> ProfileResult:
    profile = _time(opener, session, trial, batching, runs, budget=FULL_SECONDS)
    if not profile.complete:
        raise OutOfTime
    padding = pad_safely(runs.of(session), session.inputs, session.outputs, batching)
    exactness = _try_exactness(opener, session, trial, profile, batching, runs)
    profile = exact_profile(profile, exactness, batching)
    threads = ONE
    reopen = reopening(opener, batching)
    if reopen is not None and profile.seconds:
        threads = find_threads(session, trial, profile.seconds_for(1), reopen, runs)
    return ProfileResult(profile, padding, threads, measured=_now(), exactness=exactness)


def _measure_briefly(
    opener: Opener, session: Session, trial: Trial, batching: BatchPolicy, seconds: float
) -> ProfileResult:
    with BriefRuns(seconds, before=trial.seconds) as runs:
        profile = _time(opener, session, trial, batching, runs)
        complete = profile.complete
        try:
            padding = pad_safely(runs.of(session), session.inputs, session.outputs, batching)
        except OutOfTime:
            padding, complete = PadPlan(reason=MEASURING), False
        exactness = None
        try:
            exactness = _try_exactness(opener, session, trial, profile, batching, runs)
        except OutOfTime:
            complete = False
    profile = exact_profile(profile, exactness, batching)
    if profile.seconds and may_pay(session, profile.seconds_for(1)):
        complete = complete and reopening(opener, batching) is None
    return ProfileResult(profile, padding, measured=_now(), complete=complete, exactness=exactness)


def _time(
    opener: Opener,
    session: Session,
    trial: Trial,
    batching: BatchPolicy,
    runs: Runs,
    budget: float = 0.5,
) -> Profile:
    """Time runs, and report rows that influence each other although none should."""
    profile = measure_profile(
        runs.of(session),
        trial,
        session.inputs,
        session.outputs,
        batching,
        rows=session.rows,
        budget=budget,
        clock=_clock(opener, session, runs),
        changes=session.device != "cpu",
    )
    if profile.contradicted_by:
        report_contradiction(opener, profile.contradicted_by, profile.reason)
    return profile


def _try_exactness(
    opener: Opener,
    session: Session,
    trial: Trial,
    profile: Profile,
    batching: BatchPolicy,
    runs: Runs,
) -> Exactness:
    promised = batching.exact and batching.batches and session.rows.independent
    least = 2 if promised and profile.seconds and not profile.contradicted_by else 1
    return try_exactness(
        runs.of(session),
        session,
        trial,
        max(profile.max_batch_size, least),
        options=opener.options,
        clock=_clock(opener, session, runs),
    )


def _clock(opener: Opener, session: Session, runs: Runs) -> Callable[[], float]:
    """Return the clock for runs: processor time if the running thread does all the work.

    Other work on the machine makes runs longer, by an amount that differs between sizes and days.
    """
    options = opener.options
    alone = options.one_thread and not options.custom_op_libraries
    return runs.processor_clock if alone and session.device == "cpu" else runs.clock


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _recall(
    store: Store, key: Mapping[str, str], session: Session, batching: BatchPolicy
) -> ProfileResult | None:
    kept = store.read(key, batching)
    if kept is None or (batching.exact and kept.exactness is None):
        return None
    plan = plan_padding(session.inputs, session.outputs, batching.pad)
    padding = PadPlan(reason=kept.padding_off) if kept.padding_off else plan
    profile = Profile(
        kept.seconds,
        kept.max_batch_size,
        kept.reason,
        kept.row_elements,
        change_seconds=kept.change_seconds,
    )
    return ProfileResult(
        exact_profile(profile, kept.exactness, batching),
        padding,
        kept.threads,
        kept.concurrency,
        kept.measured,
        kept=True,
        exactness=kept.exactness,
    )
