"""Open one version: inspect it, verify it against its manifest, and try it on its examples.

Runs on a thread. `cohort check` and `cohort profile` use only this; a server also prepares it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from cohort.batching import Outputs, RunFeeds
from cohort.errors import CohortError, LoadFailed
from cohort.inspection import Inspector
from cohort.onnx_engine.examples import run_examples
from cohort.onnx_engine.measurement import RunsOf
from cohort.registry import Source
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
    Session,
)
from cohort.tensors import Arrays


@dataclass(frozen=True, slots=True)
class OpenVersion:
    """An open version, verified against its manifest and its config.

    opener: Opened the session, and opens others.
    session: The open session.
    config: The model's config.
    published: The version's manifest, and who signed it.
    files: The SHA-256 of its files, in hex, by their paths in its folder; empty if not asked for.
    given: The inputs of its examples.
    """

    opener: Opener
    session: Session
    config: ModelConfig
    published: Published
    files: Mapping[str, str]
    given: Sequence[Arrays]

    def close(self) -> None:
        """Close the session and its opener."""
        self.session.close()
        self.opener.close()


@dataclass(frozen=True, slots=True)
class VersionOpener:
    """Opens versions, within the limits of a process's settings.

    cache: The folder of kept profiles, optimized graphs and private copies; None: none are kept.
    rules: The limits for all models; default: any size, no custom operators.
    inspector: Inspects the model before it is opened; default None: it is not inspected.
    trust: The trusted keys, one of which must have signed the version; default None: any publisher.
    private: True to open a private copy of the files that others cannot change; default True.
    """

    cache: Path | None
    rules: ModelRules = ANY_MODEL
    inspector: Inspector | None = None
    trust: Trust | None = None
    private: bool = True

    def open(
        self,
        source: Source,
        token: CancellationToken | None = None,
        *,
        runs_examples: bool = True,
        exclusive_threads: int = 0,
    ) -> OpenVersion:
        """Open a version, and compare it with its examples.

        source: Its files and config.
        token: Cancels the opening and receives its current step; default None: not cancellable.
        runs_examples: False if the caller runs the examples; default True.
        exclusive_threads: See `Opener.open`.

        Each file is hashed once. Raises LoadFailed with the reason, Untrusted and WorkCancelled.
        The LoadFailed is transient if the files changed since they were found.
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
            max_output_bytes=config.max_output_mb * 2**20,
            decoder_seconds=None if config.trust_decoder else config.timeout(),
            rules=self.rules,
            cache=self.cache,
            room=ROOM,
            token=token or CancellationToken(),
        )
        opener.model_name = source.name
        with closed_on_failure(source, opener):
            return self._open(
                source, config, opener, runs_examples=runs_examples, threads=exclusive_threads
            )

    def _open(
        self,
        source: Source,
        config: ModelConfig,
        opener: Opener,
        *,
        runs_examples: bool,
        threads: int,
    ) -> OpenVersion:
        folder, token = source.path.parent, opener.token
        token.enter("reading its files")
        published = read_published(
            folder, opener.digests, trust=self.trust, file=source.path.name, model=source.name
        )
        manifest = published.manifest
        with ExitStack() as held:
            with token.waiting("waiting for memory"):
                held.enter_context(opener.room.take(opener.memory_needed(), token.check))
            token.enter("being copied")
            if self.private or self.cache is None:
                opener.secure(self.cache)
            else:
                opener.resolve_links(self.cache)
            token.enter("being inspected")
            inspected = None if self.inspector is None else self.inspector.inspect(opener)
        token.enter("opening a session")
        session = opener.open(threads)
        preparation = source.preparation
        with first_runs(session, token) as runs_of:
            if preparation is not None:
                preparation.fit(session.signature, session.metadata.properties)
            unneeded = self.cache is None and inspected is None and manifest is None
            files = {} if unneeded else opener.file_digests()
            if inspected not in (None, files):
                raise LoadFailed("its files changed while it was loaded")
            if manifest is not None:  # again: the files may have changed
                verify_digests(folder, manifest, opener.digests, source.path.name)
                verify_opened(manifest, files)
            token.enter("in its first runs")
            run = runs_of(session)
            given: Sequence[Arrays] = ()
            if runs_examples:
                given = run_examples(opener, session, run, config, manifest, preparation)
            if preparation is not None:
                preparation.try_out(run)
        return OpenVersion(opener, session, config, published, files, given)


@contextmanager
def closed_on_failure(source: Source, opener: Opener) -> Iterator[None]:
    """Close the opener if the `with` block fails.

    Raises a transient LoadFailed if the block raised LoadFailed and the files have changed since
    they were found, or if the private copy was deleted.
    """
    try:
        yield
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
    """Return True if the files have changed since they were found, or cannot be read now.

    A folder that was moved away, or a share that was briefly unavailable, comes back with the same
    files. Only another attempt can show that these do not fail.
    """
    try:
        return bool(source.stamp) and stamp_files(str(source.path.parent))[0] != source.stamp
    except OSError:
        return True


@contextmanager
def first_runs(session: Session, token: CancellationToken) -> Iterator[RunsOf]:
    """Yield a function that returns a session's `run`, cancellable by `token`.

    A cancelled run ends before its next node, or the next one of a loop's body, and raises
    WorkCancelled. If the `with` block fails, `session` is closed. Raises LoadFailed for errors that
    a model or a disk may cause.
    """
    control = OrtRunControl()

    def of(session: Session) -> RunFeeds:
        def run(feeds: Arrays) -> Outputs:
            try:
                return session.run(feeds, control)
            finally:
                token.check()

        return run

    try:
        with token.calling(control.stop):
            yield of
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
