"""Prepare one version to serve: open, verify and warm it up, and profile it briefly.

Runs on a thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from cohort.batching import BatchPolicy, OutputLimit, Outputs, RunFeeds, limit_outputs
from cohort.errors import CohortError
from cohort.onnx_engine.examples import examples_to_try
from cohort.onnx_engine.measurement import Measurement, rows_to_warm_up, warm_up
from cohort.onnx_engine.opening import (
    OpenVersion,
    VersionOpener,
    closed_on_failure,
    first_runs,
)
from cohort.onnx_engine.turns import RUNNING
from cohort.profiling import ProfileResult, RowFindings, Store, find_trial
from cohort.registry import Source
from cohort.repository import Published
from cohort.session import (
    MEMORY_GROWTH,
    CancellationToken,
    PrivateCopy,
    Session,
    give_back_memory,
)
from cohort.tensors import Array, Arrays

MAX_SHOWN = 1024
"""Maximum number of values of an example, and of its answer, that are kept for display."""


@dataclass(frozen=True, slots=True)
class PreparedVersion:
    """A version that is ready to serve: open, verified, warm and profiled.

    session: The open session, which runs batches.
    exclusive: A second session on more threads, for exclusive runs; None if more threads do not
        help or it could not be opened.
    profile_result: The profile measured at load, or kept by an earlier load.
    policy: The config's batch policy with the `max_batch_size` that the profile chose.
    timeout: The maximum duration of a request, in seconds, from the config.
    output_limit: The maximum bytes of a request's outputs, from the config.
    published: The version's manifest, and who signed it.
    example: The inputs of the first example of the config or the manifest. Without examples, trial
        inputs that the model accepted, or None.
    made_up: True if the config and the manifest have no example; default False.
    answer: The outputs for the example; default None: they are unknown or too long.
    files: The SHA-256 of the model and its external data, in hex, by their paths in its folder;
        default empty: they were not needed.
    copy: The private copy that the sessions were opened on; default None: there is none.
    measurement: Measures it in full; default None: it could not be run with synthetic inputs.
    memory_bytes: The growth of the process's memory during the load; default 0: unknown.
    """

    session: Session
    exclusive: Session | None
    profile_result: ProfileResult
    policy: BatchPolicy
    timeout: float
    output_limit: OutputLimit
    published: Published
    example: Arrays | None
    files: Mapping[str, str] = field(default_factory=dict)
    copy: PrivateCopy | None = None
    measurement: Measurement | None = None
    memory_bytes: int = 0
    made_up: bool = False
    answer: Outputs | None = None

    def keep_unbatched(self, reason: str) -> None:
        """Keep over restarts why its requests must not share runs."""
        if self.measurement is not None:
            self.measurement.keep_unbatched(reason)

    def profiled(self, found: ProfileResult, exclusive: Session | None) -> PreparedVersion:
        """Return a copy with another profile and its session for exclusive runs."""
        policy = replace(self.policy, max_batch_size=found.profile.max_batch_size)
        return replace(self, profile_result=found, exclusive=exclusive, policy=policy)

    def close(self) -> None:
        """Close both sessions and the private copy of the files."""
        self.session.close()
        if self.exclusive is not None:
            self.exclusive.close()
        if self.copy is not None:
            self.copy.close()


def prepare_version(
    source: Source, opener: VersionOpener, token: CancellationToken | None = None
) -> PreparedVersion:
    """Open a version, compare it with the examples of its manifest, warm it up and profile it.

    source: Its files and config.
    opener: Opens it.
    token: Cancels the preparation; default None: not cancellable.

    Each file is hashed once, and trial inputs are searched once. Raises as `VersionOpener.open`.
    """
    token = token or CancellationToken()
    with MEMORY_GROWTH.measured() as growth:
        opened = opener.open(source, token)
        with closed_on_failure(source, opened.opener):
            prepared = _prepare(opened, opener.cache, token)
    return replace(prepared, memory_bytes=growth.bytes)


def _prepare(opened: OpenVersion, cache: Path | None, token: CancellationToken) -> PreparedVersion:
    opener, session, config = opened.opener, opened.session, opened.config
    manifest = opened.published.manifest
    with first_runs(session, token) as runs_of, RUNNING.turn(token):
        token.enter("in its first runs")
        run = runs_of(session)
        tried = examples_to_try(session, opened.given)
        trial = find_trial(run, session.inputs, session.rows.axes, session.tables, tried)
        trial = warm_up(run, trial, rows_to_warm_up(session, config))
        example = next(iter(opened.given), None if trial.problem else trial.feeds(1))
        answer = _answer(run, example)
        token.enter("being profiled")
        store = None if cache is None else Store(cache)
        findings = None if cache is None else RowFindings(cache)
        measurement = Measurement(opener, session, trial, config, manifest, store, findings)
        result = measurement.briefly()
        exclusive = measurement.open_exclusive(result, runs_of)
        if not trial.problem:
            measurement.give_back(session, exclusive)
    if opener.in_memory:
        opener.close()  # the sessions hold the model; do not keep a third copy
    give_back_memory()
    policy = replace(config.batching, max_batch_size=result.profile.max_batch_size)
    return PreparedVersion(
        session,
        exclusive,
        result,
        policy,
        config.timeout(),
        limit_outputs(session.inputs, session.outputs, config.max_output_mb * 2**20),
        opened.published,
        example,
        opened.files,
        opener.copy,
        None if trial.problem else measurement,
        made_up=not opened.given,
        answer=answer,
    )


def _answer(run: RunFeeds, example: Arrays | None) -> Outputs | None:
    """Return the outputs for an example, or None if either is too long to be shown."""
    if example is None or not _is_short(example.values()):
        return None
    try:
        outputs = run(example)
    except CohortError:  # the model may be random, or depend on more than its inputs
        return None
    return [one.copy() for one in outputs] if _is_short(outputs) else None


def _is_short(arrays: Iterable[Array]) -> bool:
    return sum(one.size for one in arrays) <= MAX_SHOWN
