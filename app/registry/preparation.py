"""Prepare one version to serve: open, verify, warm up and profile it. Runs on a thread."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import structlog

from app.batching import BatchPolicy, OutputLimit, limit_outputs
from app.errors import CohortError, LoadFailed
from app.inspection import Inspector
from app.profiling import (
    ProfileResult,
    RunFeeds,
    Store,
    Trial,
    find_trial,
    profile_model,
    small_enough,
)
from app.registry.catalog import Source
from app.registry.first_runs import FirstRuns, FirstRunsTooLong
from app.repository import Manifest, ModelConfig, WarmUp, read_manifest, verify_digests
from app.session import ANY_MODEL, ModelRules, Opener, PrivateCopy, Session, give_back_memory
from app.tensors import Arrays, by_name

log = structlog.get_logger("cohort.registry")


@dataclass(frozen=True, slots=True)
class PreparedVersion:
    """A version that is ready to serve: open, verified, warm and profiled.

    session: The open session, which runs batches.
    exclusive: A second session on more threads, for exclusive runs; None where more threads do not
        pay or it could not be opened.
    profile_result: The measured profile, or the one that an earlier load kept.
    policy: The config's batch policy with the `max_batch_size` that the profile chose.
    timeout: The longest that a request may take, in seconds, from the config.
    output_limit: The most bytes of outputs that a request may get, from the config.
    manifest: The version's manifest; None where it has none.
    example: The inputs of the manifest's first example, or else trial inputs that the model
        accepted; None where there are neither.
    files: The SHA-256 of the model and its external data, in hex, by their paths in its folder;
        default none: nothing needed them.
    copy: The private copy that the sessions were opened on; default None: there is none.
    """

    session: Session
    exclusive: Session | None
    profile_result: ProfileResult
    policy: BatchPolicy
    timeout: float
    output_limit: OutputLimit
    manifest: Manifest | None
    example: Arrays | None
    files: Mapping[str, str] = field(default_factory=dict)
    copy: PrivateCopy | None = None

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
) -> PreparedVersion:
    """Open a version, compare it with the examples of its manifest, warm it up and profile it.

    source: Its files and config.
    cache: The folder of kept profiles and optimized graphs; None: none are kept.
    rules: What is allowed of any model; default: any size, no custom operators.
    inspector: Inspects the model before it is opened; default None: it is not inspected.

    Each file is hashed once, and trial inputs are searched once. Raises LoadFailed with the reason.
    """
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
    )
    try:
        return _prepare(source, config, opener, inspector)
    except BaseException:
        opener.close()
        raise


def _prepare(
    source: Source, config: ModelConfig, opener: Opener, inspector: Inspector | None
) -> PreparedVersion:
    folder, cache = source.path.parent, opener.cache
    manifest = read_manifest(folder)
    if manifest is not None:
        verify_digests(folder, manifest, opener.digests)
    opener.secure(cache)
    inspected = None if inspector is None else inspector.inspect(opener)
    session = opener.open()
    try:
        files = {} if cache is None and inspected is None else opener.file_digests()
        if inspected not in (None, files):
            raise LoadFailed("its files changed while it was loaded")
        if manifest is not None:  # again, for files that changed meanwhile
            verify_digests(folder, manifest, opener.digests)
        with FirstRuns(source.path, config.load_timeout_s) as first_runs:
            run = first_runs.of(session)
            if manifest is not None:
                _compare_examples(session, run, manifest)
            trial = find_trial(run, session.inputs)
            _warm_up(run, trial, config.warm_up)
            store = None if cache is None else Store(cache)
            result = profile_model(
                opener, session, trial, config.batching, store, runs_of=first_runs.of
            )
            exclusive = None
            threads = result.threads.chosen
            if threads > 1 and small_enough(source.path):
                exclusive = _open_exclusive(
                    opener, threads, first_runs, manifest, trial, config.warm_up
                )
    except BaseException as error:
        session.close()
        match error:
            case OSError():
                reason = f"its files cannot be read: {error.strerror}"
            case FirstRunsTooLong():
                reason = str(error)
            case CohortError() if not isinstance(error, LoadFailed):
                reason = f"its first runs failed: {error}"
            case _:
                raise
        raise LoadFailed(reason) from error
    give_back_memory()
    example = None if trial.problem else trial.feeds(1)
    if manifest is not None and manifest.examples:
        example = manifest.examples[0].inputs
    policy = replace(config.batching, max_batch_size=result.profile.max_batch_size)
    return PreparedVersion(
        session,
        exclusive,
        result,
        policy,
        config.timeout_ms / 1000,
        limit_outputs(session.inputs, session.outputs, config.max_output_mb * 2**20),
        manifest,
        example,
        files,
        opener.copy,
    )


def _open_exclusive(
    opener: Opener,
    threads: int,
    first_runs: FirstRuns,
    manifest: Manifest | None,
    trial: Trial,
    warm_up: WarmUp,
) -> Session | None:
    """Open the model on several threads, for exclusive runs; None, logged, where that fails."""
    exclusive = None
    try:
        exclusive = opener.open(threads)
        run = first_runs.of(exclusive)
        if manifest is not None:
            _compare_examples(exclusive, run, manifest)
        _warm_up(run, trial, warm_up)
    except Exception as error:  # noqa: BLE001 - the version serves without it
        if exclusive is not None:
            exclusive.close()
        log.warning(
            "exclusive runs use one thread",
            model=opener.origin.parent.parent.name,
            version=opener.origin.parent.name,
            reason=str(error),
        )
        return None
    return exclusive


def _compare_examples(session: Session, run: RunFeeds, manifest: Manifest) -> None:
    for number, example in enumerate(manifest.examples, 1):
        outputs = run(example.input_arrays(session.inputs))
        if mismatch := example.mismatch(by_name(session.outputs, outputs)):
            raise LoadFailed(
                f"example {number} of its manifest gives other outputs here: {mismatch}"
            )


def _warm_up(run: RunFeeds, trial: Trial, warm_up: WarmUp) -> None:
    """Run `warm_up.rows` once each, so that the first requests need not allocate and compile.

    Errors are ignored: the inputs are synthetic, and the model may rightly reject them.
    """
    with suppress(CohortError):
        for rows in warm_up.rows if not trial.problem else ():
            run(trial.feeds(rows))
