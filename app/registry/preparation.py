"""Opening one version, which takes long and happens off the loop."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from app.batching import BatchPolicy
from app.errors import CohortError, LoadFailed
from app.profiling import ProfileResult, Store, find_trial, key_for, profile_model, small_enough
from app.registry.catalog import Source
from app.repository import Manifest, ModelConfig, read_manifest, verify_digests
from app.session import Session, give_back_memory, open_session
from app.tensors import Arrays, by_name

log = structlog.get_logger("cohort.registry")


@dataclass(frozen=True, slots=True)
class PreparedVersion:
    """A version that opened, kept its promises and is warm."""

    session: Session
    exclusive: Session | None
    found: ProfileResult
    policy: BatchPolicy
    timeout: float
    manifest: Manifest | None
    example: Arrays | None  # inputs it was seen to take

    def close(self) -> None:
        self.session.close()
        if self.exclusive is not None:
            self.exclusive.close()


def prepare_version(source: Source, cache: Path | None) -> PreparedVersion:
    """Open a version, compare it with its golden examples, warm it up and profile it.

    Raises LoadFailed with the reason, whatever went wrong.
    """
    if source.config is None:
        raise LoadFailed(source.problem or "its configuration cannot be read")
    config = source.config
    folder = source.path.parent
    manifest = read_manifest(folder)
    if manifest is not None:
        verify_digests(folder, manifest)
    opener = Opener(source.path, config, cache)
    session = opener.open()
    try:
        example = _try_out(session, config, manifest)
        found = opener.profile_model(session)
    except BaseException as error:
        session.close()
        if not isinstance(error, CohortError) or isinstance(error, LoadFailed):
            raise
        raise LoadFailed(f"its first runs failed: {error}") from error
    exclusive = _open_exclusive(opener, found.threads.chosen, manifest)
    give_back_memory()
    if manifest is not None and manifest.examples:
        example = manifest.examples[0].inputs
    policy = replace(config.batching, max_batch_size=found.profile.max_batch_size)
    return PreparedVersion(
        session, exclusive, found, policy, config.timeout_ms / 1000, manifest, example
    )


@dataclass(frozen=True, slots=True)
class Opener:
    """Opens one model file as its config says."""

    path: Path
    config: ModelConfig
    cache: Path | None

    def open(self, exclusive_threads: int = 0) -> Session:
        return open_session(
            self.path,
            chain=self.config.providers,
            policy=self.config.provider_policy,
            options=self.config.session,
            cache=self.cache,
            exclusive_threads=exclusive_threads,
        )

    def key(self, session: Session) -> dict[str, str]:
        """What the profile of `session`, which it opened, is kept by. Raises OSError."""
        config = self.config
        return key_for(
            self.path,
            session,
            config.batching,
            chain=config.providers,
            policy=config.provider_policy,
            options=config.session,
        )

    @property
    def reopen(self) -> Callable[[int], Session] | None:
        """Opens it for exclusive runs; None where the config, or its size, is against that."""
        own = self.config.session.intra_op_threads is not None
        return None if own or not small_enough(self.path) else self.open

    def profile_model(self, session: Session) -> ProfileResult:
        """Profile it, or recall its profile."""
        store = key = None
        if self.cache is not None:
            with suppress(OSError):  # of a model deleted meanwhile, say
                key = self.key(session)
                store = Store(self.cache)
        return profile_model(session, self.config.batching, store, key, reopen=self.reopen)


def _open_exclusive(opener: Opener, threads: int, manifest: Manifest | None) -> Session | None:
    """The same model on several threads; None where it has no need of them, or cannot have them."""
    if threads == 1 or not small_enough(opener.path):
        return None
    exclusive = None
    try:
        exclusive = opener.open(threads)
        _try_out(exclusive, opener.config, manifest)
    except Exception as error:  # noqa: BLE001  the version serves without it
        if exclusive is not None:
            exclusive.close()
        log.warning(
            "exclusive runs keep to one thread",
            model=opener.path.parent.parent.name,
            version=opener.path.parent.name,
            reason=str(error),
        )
        return None
    return exclusive


def _try_out(session: Session, config: ModelConfig, manifest: Manifest | None) -> Arrays | None:
    """Compare it with its examples and warm it up; returns one row that it takes."""
    if manifest is not None:
        _compare_examples(session, manifest)
    return _warm_up(session, config)


def _compare_examples(session: Session, manifest: Manifest) -> None:
    for number, example in enumerate(manifest.examples, 1):
        outputs = session.run(example.input_arrays(session.inputs))
        if mismatch := example.mismatch(by_name(session.outputs, outputs)):
            raise LoadFailed(f"example {number} of its manifest differs here: {mismatch}")


def _warm_up(session: Session, config: ModelConfig) -> Arrays | None:
    """Allocate and compile ahead of the first callers; returns one row that the model takes.

    The inputs are made up, so a model that refuses them is not at fault.
    """
    example = None
    with suppress(CohortError):
        trial = find_trial(session.run, session.inputs)
        example = trial(1)
        for rows in config.warm_up.rows:
            session.run(trial(rows))
    return example
