"""Prepare one version to serve: open, verify and warm it up, and profile it for a moment.

Runs on a thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from cohort.batching import BatchPolicy, OutputLimit, Outputs, RunFeeds, limit_outputs
from cohort.errors import CohortError, LoadFailed
from cohort.inspection import Inspector
from cohort.profiling import ProfileResult, RowFindings, Store, find_trial
from cohort.registry.catalog import Source
from cohort.registry.examples import examples_to_try, run_examples
from cohort.registry.measurement import Measurement, RunsOf, warm_up
from cohort.repository import (
    ModelConfig,
    Published,
    Trust,
    read_published,
    stamp_files,
    verify_digests,
    verify_opened,
)
from cohort.session import (
    ANY_MODEL,
    ROOM,
    CancellationToken,
    ModelRules,
    Opener,
    OrtRunControl,
    PrivateCopy,
    Session,
    give_back_memory,
)
from cohort.tensors import Arrays


@dataclass(frozen=True, slots=True)
class PreparedVersion:
    """A version that is ready to serve: open, verified, warm and profiled.

    session: The open session, which runs batches.
    exclusive: A second session on more threads, for exclusive runs; None where more threads do not
        pay or it could not be opened.
    profile_result: What was measured at load, or the profile that an earlier load kept.
    policy: The config's batch policy with the `max_batch_size` that the profile chose.
    timeout: The longest that a request may take, in seconds, from the config.
    output_limit: The most bytes of outputs that a request may get, from the config.
    published: The version's manifest, and who signed it.
    example: The inputs of the manifest's first example, or else trial inputs that the model
        accepted; None where there are neither.
    files: The SHA-256 of the model and its external data, in hex, by their paths in its folder;
        default none: nothing needed them.
    copy: The private copy that the sessions were opened on; default None: there is none.
    measurement: Measures it in full; default None: it could not be run with synthetic inputs.
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

    def keep_unbatched(self, reason: str) -> None:
        """Keep why its requests must not share runs, over restarts."""
        if self.measurement is not None:
            self.measurement.keep_unbatched(reason)

    def profiled(self, found: ProfileResult, exclusive: Session | None) -> PreparedVersion:
        """This version with another profile, and the session for the exclusive runs it asks for."""
        policy = replace(self.policy, max_batch_size=found.profile.max_batch_size)
        return replace(self, profile_result=found, exclusive=exclusive, policy=policy)

    def close(self) -> None:
        """Close both sessions and what they were opened on."""
        self.session.close()
        if self.exclusive is not None:
            self.exclusive.close()
        if self.copy is not None:
            self.copy.close()


def prepare_version(
    source: Source,
    cache: Path | None,
    *,
    rules: ModelRules = ANY_MODEL,
    inspector: Inspector | None = None,
    trust: Trust | None = None,
    token: CancellationToken | None = None,
) -> PreparedVersion:
    """Open a version, compare it with the examples of its manifest, warm it up and profile it.

    source: Its files and config.
    cache: The folder of kept profiles and optimized graphs; None: none are kept.
    rules: What is allowed of any model; default: any size, no custom operators.
    inspector: Inspects the model before it is opened; default None: it is not inspected.
    trust: The keys of which one must have signed the version; default None: anybody may publish.
    token: Cancels this; default None: nothing does.

    Each file is hashed once, and trial inputs are searched once. Raises LoadFailed with the reason,
    a transient one where the files have changed meanwhile, Untrusted and WorkCancelled.
    """
    token = token or CancellationToken()
    if source.problem or source.config is None:
        raise LoadFailed(source.problem or "its config cannot be read")
    config = source.config
    opener = Opener(
        source.path,
        chain=config.providers,
        policy=config.provider_policy,
        options=config.session,
        memory_limit_mb=config.memory_limit_mb,
        rules=rules,
        cache=cache,
        room=ROOM,
        token=token,
    )
    try:
        return _prepare(source, config, opener, inspector, trust)
    except BaseException as error:
        gone = opener.copy is not None and not opener.copy.path.exists()
        opener.close()
        if gone:
            message = "the copy of its files was deleted from COHORT_CACHE while it was loaded"
            raise LoadFailed(message, transient=True) from error
        if isinstance(error, LoadFailed) and _changed(source):
            raise LoadFailed(str(error), transient=True) from error
        raise


def _changed(source: Source) -> bool:
    """Whether the files are others than those that were seen, or cannot be looked at, just now.

    A folder that is moved away, or a share that is gone for a moment, comes back with the very same
    files, which nothing but another try tells from those that failed.
    """
    try:
        return bool(source.stamp) and stamp_files(str(source.path.parent))[0] != source.stamp
    except OSError:
        return True


def _prepare(
    source: Source,
    config: ModelConfig,
    opener: Opener,
    inspector: Inspector | None,
    trust: Trust | None,
) -> PreparedVersion:
    folder, cache, token = source.path.parent, opener.cache, opener.token
    token.enter("reading its files")
    published = read_published(folder, opener.digests, trust=trust)
    manifest = published.manifest
    token.enter("waiting for memory")
    with opener.room.take(opener.memory_needed(), token.check):
        token.enter("being copied")
        opener.secure(cache)
        token.enter("being inspected")
        inspected = None if inspector is None else inspector.inspect(opener)
    token.enter("opening a session")
    session = opener.open()
    try:
        unneeded = cache is None and inspected is None and manifest is None
        files = {} if unneeded else opener.file_digests()
        if inspected not in (None, files):
            raise LoadFailed("its files changed while it was loaded")
        if manifest is not None:  # again, for files that changed meanwhile
            verify_digests(folder, manifest, opener.digests)
            verify_opened(manifest, files)
        with _first_runs(token) as runs_of:
            run = runs_of(session)
            token.enter("in its first runs")
            given = run_examples(opener, session, run, config, manifest)
            tried = examples_to_try(session, given)
            trial = find_trial(run, session.inputs, session.rows.axes, session.tables, tried)
            trial = warm_up(run, trial, config.warm_up)
            token.enter("being profiled")
            store = None if cache is None else Store(cache)
            findings = None if cache is None else RowFindings(cache)
            measurement = Measurement(opener, session, trial, config, manifest, store, findings)
            result = measurement.briefly()
            exclusive = measurement.open_exclusive(result, runs_of)
    except BaseException as error:
        session.close()
        match error:
            case OSError():
                reason = f"its files cannot be read: {error.strerror}"
            case CohortError() if not isinstance(error, LoadFailed):
                reason = f"its first runs failed: {error}"
            case _:
                raise
        raise LoadFailed(reason) from error
    if opener.in_memory:
        opener.close()  # the sessions have it, and a third time is too often
    give_back_memory()
    example = next(iter(given), None if trial.problem else trial.feeds(1))
    policy = replace(config.batching, max_batch_size=result.profile.max_batch_size)
    return PreparedVersion(
        session,
        exclusive,
        result,
        policy,
        config.timeout_ms / 1000,
        limit_outputs(session.inputs, session.outputs, config.max_output_mb * 2**20),
        published,
        example,
        files,
        opener.copy,
        None if trial.problem else measurement,
    )


@contextmanager
def _first_runs(token: CancellationToken) -> Iterator[RunsOf]:
    """Give what makes a session's `run` one that `token` cancels: it raises WorkCancelled then.

    A run ends before its next node, or the next one of a loop's body.
    """
    control = OrtRunControl()

    def of(session: Session) -> RunFeeds:
        def run(feeds: Arrays) -> Outputs:
            try:
                return session.run(feeds, control)
            finally:
                token.check()

        return run

    with token.calling(control.stop):
        yield of
