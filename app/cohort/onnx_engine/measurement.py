"""What is measured of an open version: a little of it at load, the rest in idle moments."""

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
"""Of the larger run that warms up a GPU."""

RunsOf = Callable[[Session], RunFeeds]
"""Gives what runs a session, under limits."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Measures one open version, as often as it is asked to.

    opener: Opened the session, and opens others on more threads.
    session: The session.
    trial: The inputs of its runs.
    config: The model's config.
    manifest: The version's manifest; None where it has none.
    store: Where profiles are kept; None: they are not.
    findings: Where it is kept that a model cannot batch; None: it is not.
    """

    opener: Opener
    session: Session
    trial: Trial
    config: ModelConfig
    manifest: Manifest | None
    store: Store | None
    findings: RowFindings | None

    def briefly(self) -> ProfileResult:
        """The kept profile, or what can be measured in a moment: see `profile_briefly`."""
        return self._with_findings(
            profile_briefly(self.opener, self.session, self.trial, self.config.batching, self.store)
        )

    def fully(self, runs: Runs, *, fresh: bool = False) -> ProfileResult:
        """The whole profile: the kept one, unless `fresh`, or measured in `runs`.

        Raises OutOfTime and what `runs` raise, LoadFailed and InferenceFailed.
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
        """Keep, on a thread of its own, why requests of the model must not share runs."""
        findings, opener, batching = self.findings, self.opener, self.config.batching
        if findings is None:
            return

        def keep() -> None:
            with suppress(OSError):  # its files are gone meanwhile
                findings.write(opener.digest(), batching, reason)

        with suppress(RuntimeError):  # the system has no thread for it now
            threading.Thread(target=keep, name="cohort-keep", daemon=True).start()

    def give_back(self, *sessions: Session | None) -> None:
        """Give back what runs of these sessions took of memory."""
        feeds = self.trial.feeds(1)
        for session in sessions:
            if session is not None:
                session.give_back(feeds)
        give_back_memory()

    def stop(self) -> None:
        """Let a session that is being opened be the last; from any thread."""
        self.opener.token.cancel("the version is closed")

    def open_exclusive(self, found: ProfileResult, runs_of: RunsOf) -> Session | None:
        """Open the model on as many threads as were `found` to pay, and try it.

        None where one is best, and, logged, where that fails: the version serves without it.
        Raises OutOfTime, if a run does.
        """
        threads = found.threads.chosen
        if threads == 1 or not small_enough(self.opener.path):
            return None
        exclusive = None
        try:
            exclusive = self.opener.open(threads)
            if not self.opener.unchanged():
                raise LoadFailed("its files have changed")
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
                model=self.opener.origin.parent.parent.name,
                version=self.opener.origin.parent.name,
                reason=str(error),
            )
            return None
        return exclusive


def rows_to_warm_up(session: Session, config: ModelConfig) -> tuple[int, ...]:
    """The rows of the runs before the first request: see `WarmUp`."""
    if config.warm_up.rows is not None:
        return config.warm_up.rows
    unbatchable = why_unbatchable(session.inputs, session.outputs, session.rows, config.batching)
    if session.device == CPU_DEVICE or unbatchable or not config.batching.batches:
        return (1,)
    return (1, min(WARM_ROWS, config.batching.max_batch_size))


def warm_up(run: RunFeeds, trial: Trial, rows_of_runs: Sequence[int]) -> Trial:
    """Run as many rows as each says, so that the first requests need not allocate and compile.

    Returns the trial with the seconds of a warm run, where one row is among them. Errors are
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
