"""Bit-exact batching: each request of a version gets the same bits as when it runs alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter

from cohort.batching import BatchPolicy, RunFeeds
from cohort.profiling.exactness import Exactness, RoundingKernel, rounding_kernels, try_bits
from cohort.profiling.measurement import MEASURING, Profile
from cohort.profiling.sharing import plan_rows
from cohort.profiling.trial import Trial, has_open_dimensions, why_too_large
from cohort.session import Session, SessionOptions

TRIED_REQUESTS = 8
"""Number of different rows in the runs whose bits are compared."""

OTHER_LENGTHS = (1, 2, 3, 7, 17)
"""Additional sizes of open dimensions: kernels for a single row or column differ."""

REQUESTS_OF_A_LENGTH = 3

ALONE = Exactness(1)
"""Result for a version whose requests do not share runs."""

ON_CPU = "cpu"
"""The provider whose kernels the table knows."""


def try_exactness(
    run: RunFeeds,
    session: Session,
    trial: Trial,
    most: int,
    *,
    options: SessionOptions,
    clock: Callable[[], float] = perf_counter,
) -> Exactness:
    """Compare the bits of runs of up to `most` rows; see `try_bits`.

    run: Runs the session.
    options: The session's options.
    clock: Counts the seconds of runs.
    """
    if most == 1:
        return ALONE
    requests = trial.requests(TRIED_REQUESTS)
    if any(has_open_dimensions(spec, trial.axes) for spec in session.inputs):
        others = [
            replace(trial, length=length, examples=(), like=None)
            for length in OTHER_LENGTHS
            if not why_too_large(session.inputs, length, trial.axes)
        ]
        requests += [one for other in others for one in other.requests(REQUESTS_OF_A_LENGTH)]
    return try_bits(
        run,
        requests,
        session.outputs,
        most=most,
        stacking=plan_rows(session.inputs, session.outputs, session.rows),
        known=known_rounding(session, options),
        one_size=session.placement.active != ON_CPU,
        clock=clock,
    )


def known_rounding(session: Session, options: SessionOptions) -> list[RoundingKernel]:
    """Return the session's kernels known to round a row depending on its run, the worst first.

    Returns an empty list on providers other than the CPU: the table has only CPU kernels.
    """
    if session.placement.active != ON_CPU:
        return []
    return rounding_kernels(session.rows.kernels, several=not options.one_thread)


def exact_profile(profile: Profile, exactness: Exactness | None, policy: BatchPolicy) -> Profile:
    """Apply `batching.exact` to a profile: fill runs, or turn batching off if filling fails.

    Runs are filled even while batching is off for now. So a row has the same bits before the
    version is measured, after a restart and in each worker.

    exactness: The result of the comparison; None if it is pending. Until then, a lone row runs as
        two rows, which gives it the bits that it has in all runs of two or more rows.
    """
    if not policy.exact or not policy.batches:
        return profile
    if exactness is None:
        off = replace(profile, max_batch_size=1, least_rows=2)
        return off if profile.reason else replace(off, reason=MEASURING)
    if exactness.least_rows or profile.max_batch_size == 1:
        return replace(profile, least_rows=max(1, exactness.least_rows))
    reason = f"callers would get other bits than alone (batching.exact): {exactness.reason}"
    return replace(profile, max_batch_size=1, reason=reason)
