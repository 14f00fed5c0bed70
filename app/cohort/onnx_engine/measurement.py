"""Measurement of an open version: briefly at load, fully in idle moments."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from time import perf_counter

import structlog

from cohort.batching import RunFeeds
from cohort.errors import CohortError, LoadFailed
from cohort.onnx_engine.examples import compare_examples
from cohort.profiling import (
    OutOfTime,
    ProfileResult,
    RowFindings,
    Runs,
    Store,
    Trial,
    profile_briefly,
    profile_model,
    small_enough,
    why_unbatchable,
    with_findings,
)
from cohort.repository import Manifest, ModelConfig
from cohort.session import CPU_DEVICE, Opener, Session, give_back_memory

log = structlog.get_logger("cohort.registry")

WARM_ROWS = 8
"""Number of rows of the larger run that warms up a GPU."""

RunsOf = Callable[[Session], RunFeeds]
"""Returns a function that runs a session, under limits."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Measures one open version, any number of times.

    opener: Opened the session, and opens others on more threads.
    session: The session.
    trial: The inputs of its runs.
    config: The model's config.
    manifest: The version's manifest; None if the version does not have one.
    store: The store of kept profiles; None: profiles are not kept.
    findings: The store of findings against batching; None: they are not kept.
    """

    opener: Opener
    session: Session
    trial: Trial
    config: ModelConfig
    manifest: Manifest | None
    store: Store | None
    findings: RowFindings | None

    def briefly(self) -> ProfileResult:
        """Return the kept profile, or measure briefly: see `profile_briefly`."""
        return self._with_findings(
            profile_briefly(self.opener, self.session, self.trial, self.config.batching, self.store)
        )

    def fully(self, runs: Runs, *, fresh: bool = False) -> ProfileResult:
        """Return the full profile: the kept one, unless `fresh`, or one measured in `runs`.

        Raises OutOfTime, LoadFailed, InferenceFailed and any error that `runs` raise.
        """
        batching = self.config.batching
        return self._with_findings(
            profile_model(
                self.opener, self.session, self.trial, batching, self.store, fresh=fresh, runs=runs
            )
        )

    def _with_findings(self, result: ProfileResult) -> ProfileResult:
        batching = self.config.batching
        return with_findings(result, self.session, batching, self.findings, self.opener.digest)

    def keep_unbatched(self, reason: str) -> None:
        """Keep, on a separate thread, why requests of the model must not share runs."""
        findings, opener, batching = self.findings, self.opener, self.config.batching
        if findings is None:
            return

        def keep() -> None:
            with suppress(OSError):  # its files were deleted
                findings.write(opener.digest(), batching, reason)

        with suppress(RuntimeError):  # the system cannot start a thread now
            threading.Thread(target=keep, name="cohort-keep", daemon=True).start()

    def give_back(self, *sessions: Session | None) -> None:
        """Release the memory that runs of these sessions allocated."""
        feeds = self.trial.feeds(1)
        for session in sessions:
            if session is not None:
                session.give_back(feeds)
        give_back_memory()

    def stop(self) -> None:
        """Cancel the opening of sessions; callable from any thread."""
        self.opener.token.cancel("the version is closed")

    def open_exclusive(self, found: ProfileResult, runs_of: RunsOf) -> Session | None:
        """Open the model on the number of threads in `found`, and try it.

        Returns None if one thread is best or the model is too large. Also returns None, and logs
        the reason, if opening or trying fails: the version serves without it. Raises OutOfTime if a
        run does.
        """
        threads = found.threads.chosen
        if threads == 1 or not small_enough(self.opener.path):
            return None
        exclusive = None
        try:
            exclusive = self.opener.open(threads)
            if not self.opener.unchanged():
                raise LoadFailed("its files changed")
            run = runs_of(exclusive)
            if self.manifest is not None:
                compare_examples(exclusive, run, self.manifest)
            warm_up(run, self.trial, rows_to_warm_up(exclusive, self.config))
        except Exception as error:
            if exclusive is not None:
                exclusive.close()
            if isinstance(error, OutOfTime):
                raise
            log.warning(
                "exclusive runs use one thread",
                model=self.opener.model_name,
                version=self.opener.version_name,
                reason=str(error),
            )
            return None
        return exclusive


def rows_to_warm_up(session: Session, config: ModelConfig) -> tuple[int, ...]:
    """Return the rows of the runs before the first request: see `WarmUp`."""
    if config.warm_up.rows is not None:
        return config.warm_up.rows
    unbatchable = why_unbatchable(session.inputs, session.outputs, session.rows, config.batching)
    if session.device == CPU_DEVICE or unbatchable or not config.batching.batches:
        return (1,)
    return (1, min(WARM_ROWS, config.batching.max_batch_size))


def warm_up(run: RunFeeds, trial: Trial, rows_of_runs: Sequence[int]) -> Trial:
    """Run each number of rows, so that the first requests need not allocate and compile.

    Returns the trial, with the seconds of a warm run if one of one row was made. Errors are
    ignored: the inputs are synthetic, and the model may rightly reject them.
    """
    with suppress(CohortError):
        for rows in rows_of_runs if not trial.problem else ():
            feeds = trial.feeds(rows)
            started = perf_counter()
            run(feeds)
            if rows == 1:
                trial = replace(trial, seconds=perf_counter() - started)
    return trial
