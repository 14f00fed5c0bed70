"""Syncing a local folder with a remote repository: choosing versions to fetch and to remove.

Nothing is removed unless a listing succeeded. Versions of a model are removed only once all its
wanted versions are here. `cohort.remote.mirror_files` describes the folder's layout.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from queue import SimpleQueue
from threading import Condition, Event, Thread
from typing import Any

from cohort.errors import RemoteFailed
from cohort.remote.fetching import Fetcher, GivenUp
from cohort.remote.listing import (
    Listing,
    ModelUse,
    RemoteModel,
    RemoteVersion,
    arrange,
    dispensable_versions,
    wanted_versions,
)
from cohort.remote.mirror_files import MirrorFiles
from cohort.remote.pace import Progress
from cohort.remote.raw_listing import list_files
from cohort.remote.store import RemoteStore
from cohort.repository import ConfigProblems, ModelConfig, Problem, load_model_config

REMOTE_SYNC_SECONDS = 10.0
"""Minimum seconds between two listings, which cost money and, for many files, time."""

REMOTE_QUIET_SECONDS = 2.0
"""Seconds without a change after which a version is complete, and until the next check of it."""

REMOTE_EMPTY_SECONDS = 10.0
"""Seconds without any model in the repository after which all models are removed."""

FETCHES_AT_ONCE, MAX_FETCHES = 4, 16
"""Versions fetched at a time. Each slow version allows one more, up to the second number."""

PACE_SECONDS = 2.0
"""Seconds between two checks of the download rates."""

FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS = 2.0, 300.0
"""Seconds before a failed fetch is retried: the first pause, doubled each time, and the limit."""

MAX_CONFIG_BYTES = 1 << 20

Uses = Mapping[str, ModelUse]

Place = tuple[str, int]
"""A model's name, and a version's number."""


@dataclass(frozen=True, slots=True)
class MirrorStatus:
    """The state of a mirror.

    failure: The reason why the last sync failed; default empty: it did not fail.
    problems: Problems in the repository, and failed fetches.
    slow: Slow downloads, each with its rate.
    synced: The time of the last successful sync, in seconds since 1970; default 0: never.
    fetched_bytes: Bytes received since the start.
    settled: True after the first full sync, whether or not every model was fetched; default False.
        It does not wait for models that have a local version. If any model is here, it also does
        not wait for slow downloads or an unreachable repository.
    follows: True if another process keeps the folder in sync; default False.
    """

    failure: str = ""
    problems: tuple[Problem, ...] = ()
    slow: tuple[Problem, ...] = ()
    synced: float = 0.0
    fetched_bytes: int = 0
    settled: bool = False
    follows: bool = False


@dataclass(frozen=True, slots=True)
class _Job:
    version: RemoteVersion
    identity: str
    progress: Progress


@dataclass(frozen=True, slots=True)
class _Failure:
    identity: str
    sentence: str
    count: int
    retry_at: float  # on the monotonic clock


class Mirror:
    """A local folder kept in sync with a repository. Call `sync` on one thread; others on any.

    models: The folder that is served.
    status: The current state, replaced at each change.
    on_change: Called after a sync and after each version, on any thread, maybe with locks held.

    address: The repository's address, as `check_remote` returns it.
    folder: The mirror's folder.
    max_bytes: Maximum bytes of a version; default None: no limit.
    quiet: Seconds without a change after which a version is complete; 0 accepts it at once; default
        REMOTE_QUIET_SECONDS.
    repeat: Seconds between two syncs of `run`, at least REMOTE_SYNC_SECONDS; 0: only when woken;
        default REMOTE_SYNC_SECONDS.
    model_name: The name of the model if the repository may be one model; default None: it may not.
    """

    def __init__(
        self,
        address: str,
        folder: Path,
        *,
        max_bytes: int | None = None,
        quiet: float = REMOTE_QUIET_SECONDS,
        repeat: float = REMOTE_SYNC_SECONDS,
        model_name: str | None = None,
    ) -> None:
        self.status = MirrorStatus()
        self.on_change: Callable[[], None] = lambda: None
        self._address, self._max_bytes = address, max_bytes
        self._quiet, self._repeat, self._model_name = quiet, repeat, model_name
        self._files = MirrorFiles(folder, address)
        self.models = self._files.models
        self._fetcher: Fetcher | None = None
        self._changed = Condition()  # guards the files, jobs, failures and the status
        self._jobs: dict[Place, _Job] = {}
        self._failures: dict[Place, _Failure] = {}
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._threads = 0
        self._seen: dict[
            Place, tuple[str, float]
        ] = {}  # the identity, and the time it was first seen
        self._soon = False  # True if a version changed just now
        self._configs: dict[str, ModelConfig] = {}
        self._listing_problems: tuple[Problem, ...] = ()
        self._empty_since: float | None = None
        self._wake = Event()
        self._closed = False

    def run(self, uses: Callable[[], Uses | None]) -> None:
        """Sync repeatedly, until `close`.

        uses: Returns the server's use of each model; None while it is unknown.
        """
        while not self._closed:
            began = time.monotonic()
            self._wake.clear()
            self.sync(uses())
            self.on_change()
            pause = max(REMOTE_SYNC_SECONDS, self._repeat, 10 * (time.monotonic() - began))
            if self._soon:
                pause = REMOTE_QUIET_SECONDS
            self._rest(pause if self._soon or self._repeat else inf)

    def _rest(self, seconds: float) -> None:
        """Wait for `seconds` or until `wake`, and check download rates every PACE_SECONDS."""
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0:
            if not self._jobs:
                self._wake.wait(None if left == inf else left)
                return
            if self._wake.wait(min(left, PACE_SECONDS)):
                return
            self._check_pace()

    def _check_pace(self) -> None:
        with self._changed:
            before = self.status
            for job in self._jobs.values():
                job.progress.check()
            if not self._closed:
                self._have_threads()
            self._note()
            changed = before.settled != self.status.settled or before.slow != self.status.slow
        if changed:
            self.on_change()

    def wake(self) -> None:
        """Make `run` sync now."""
        self._wake.set()

    def sync(self, uses: Uses | None = None) -> None:
        """List the repository, start to fetch wanted versions, and remove versions that are gone.

        uses: The server's use of each model; default None: unknown. Then no version that is still
            in the repository is removed.

        Blocks while listing. Reports failures in `status` and does not raise them.
        """
        try:
            self._sync(uses)
        except RemoteFailed as error:
            self._note(failure=str(error))
        except OSError as error:
            why = error.strerror or str(error)
            self._note(failure=f"{self._address} cannot be kept in COHORT_CACHE: {why}")

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until nothing is being fetched; return False after `seconds` (default: no limit)."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._jobs or self._closed, seconds)

    @property
    def fetching(self) -> list[str]:
        """The versions whose fetch is in progress or queued."""
        with self._changed:
            return [str(job.version) for job in self._jobs.values()]

    def close(self) -> None:
        """Stop fetching; the next process resumes incomplete files."""
        with self._changed:
            self._closed = True
            for job in self._jobs.values():
                job.progress.given_up.set()
            for _ in range(self._threads):
                self._queue.put(None)
            self._files.unlock()
            self._changed.notify_all()
        self._wake.set()

    # -- one sync

    def _sync(self, uses: Uses | None) -> None:
        with self._changed:
            if self._closed:
                return
            if not self._files.lock():
                self._note(follows=True, failure="", settled=True)
                return
        if self._fetcher is None:
            self._fetcher = self._make_fetcher(RemoteStore(self._address))
        store = self._fetcher.store
        listing = arrange(list_files(store, known=self._files.names()), self._model_name)
        if self._is_empty_for_now(listing):
            raise RemoteFailed(
                f"{self._address} no longer has a model; the local models stay for now"
            )
        problems = [*listing.problems]
        for name, model in listing.models.items():
            problems += self._follow_config(store, name, model)
        with self._changed:
            self._soon = False
            self._forget(listing)
            needed = []
            for name, model in listing.models.items():
                needed += self._follow(name, model, None if uses is None else uses.get(name))
            for name in self._files.names() - listing.models.keys() - listing.aside:
                self._files.remove_model(name)
            self._files.keep_parts(
                {self._fetcher.part(file) for one in needed for file in one.files.values()}
            )
            self._listing_problems = tuple(problems)
            self._note(failure="", follows=False, synced=time.time())

    def _make_fetcher(self, store: RemoteStore) -> Fetcher:
        return Fetcher(store, self._files.parts, self._find, self._max_bytes)

    def _find(self, sha256: str) -> list[Path]:
        with self._changed:
            return [self.models / place for place in self._files.ledger.find(sha256)]

    def _is_empty_for_now(self, listing: Listing) -> bool:
        if listing.models or listing.aside or not self._files.names():
            self._empty_since = None
            return False
        if self._empty_since is None:
            self._empty_since = time.monotonic()
        return time.monotonic() - self._empty_since < REMOTE_EMPTY_SECONDS

    def _follow_config(self, store: RemoteStore, name: str, model: RemoteModel) -> list[Problem]:
        """Copy a model's config from the repository; return the problems."""
        file = model.config
        if file is None:
            with self._changed:
                self._files.remove_config(name)
        elif self._files.ledger.configs.get(name) != file.identity:
            try:
                content = store.read(file, MAX_CONFIG_BYTES)
            except RemoteFailed as error:
                return [Problem(file.path, "", str(error))]
            with self._changed:
                self._files.put_config(name, content, file.identity)
        with suppress(ConfigProblems):  # keep the last valid config
            self._configs[name] = load_model_config(self.models / name)
        return []

    def _follow(self, name: str, model: RemoteModel, use: ModelUse | None) -> list[RemoteVersion]:
        """Start to fetch or remove versions of a model; return the wanted ones that are missing.

        use: The server's use of the model; None: unknown.
        """
        here, kept = self._files.numbers(name), self._files.ledger.versions
        quiet = {number for number, one in model.versions.items() if self._is_quiet(one)}
        listed = model.versions.keys() | model.aside
        there = quiet | (here & listed)
        known = use or ModelUse()
        failed = {number for place, number in self._failures if place == name}
        policy = self._configs.get(name, ModelConfig()).versions
        wanted = wanted_versions(
            there, policy, replace(known, passed_over=known.passed_over | failed)
        )
        missing = [
            one
            for one in map(model.versions.get, sorted(wanted - model.aside, reverse=True))
            if one is not None and (str(one) not in kept or kept[str(one)].identity != one.identity)
        ]
        for one in missing:
            if one.number in quiet:
                self._begin(one)
        if here and not missing:
            for number in dispensable_versions(here, listed, wanted, use):
                self._files.remove(name, number)
        return missing

    def _is_quiet(self, version: RemoteVersion) -> bool:
        """True if it has not changed for `quiet` seconds, by its times or by its identity."""
        place, identity, now = (version.model, version.number), version.identity, time.monotonic()
        before, since = self._seen.get(place, ("", now))
        since = since if before == identity else now
        self._seen[place] = identity, since
        quiet = time.time() - version.modified >= self._quiet or now - since >= self._quiet
        self._soon |= not quiet
        return quiet

    def _forget(self, listing: Listing) -> None:
        """Drop records of versions that are gone from the repository or were replaced."""
        for name, number in [*self._seen, *self._failures]:
            model = listing.models.get(name)
            version = model.versions.get(number) if model is not None else None
            if version is None:
                self._seen.pop((name, number), None)
            failure = self._failures.get((name, number))
            if failure is not None and (version is None or version.identity != failure.identity):
                del self._failures[name, number]
        for place, job in self._jobs.items():
            model = listing.models.get(place[0])
            if model is None or place[1] not in model.versions:
                job.progress.given_up.set()

    # -- fetching

    def _begin(self, version: RemoteVersion) -> None:
        place, identity = (version.model, version.number), version.identity
        job, failure = self._jobs.get(place), self._failures.get(place)
        if job is not None:
            if job.identity != identity:
                job.progress.given_up.set()  # a later sync starts it again
            return
        if failure is not None and time.monotonic() < failure.retry_at:
            return
        progress = Progress(version.bytes_known, self._count)
        self._jobs[place] = job = _Job(version, identity, progress)
        self._queue.put(job)
        self._have_threads()

    def _have_threads(self) -> None:
        """Start threads until each version that may be fetched now has one."""
        while self._threads < min(self._at_once, len(self._jobs)):
            self._threads += 1
            Thread(target=self._work, name=f"fetch-{self._threads}", daemon=True).start()

    @property
    def _at_once(self) -> int:
        slow = sum(job.progress.slow for job in self._jobs.values())
        return min(FETCHES_AT_ONCE + slow, MAX_FETCHES)

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            failure = ""
            try:
                self._fetch(job)
            except RemoteFailed as error:
                failure = str(error)
            except GivenUp:
                pass
            except Exception as error:  # noqa: BLE001 - the thread has other versions to fetch
                failure = f"{job.version} could not be fetched: {type(error).__name__}: {error}"
            with self._changed:
                self._end(job, failure)
                if self._threads > max(self._at_once, FETCHES_AT_ONCE):
                    self._threads -= 1
                    return

    def _fetch(self, job: _Job) -> None:
        version, fetcher = job.version, self._fetcher
        if fetcher is None or job.progress.given_up.is_set():
            return
        with self._changed:
            made = self._files.new_folder()
            kept = self._files.ledger.versions.get(str(version))
        before = None if kept is None else (self.models / str(version), kept)
        try:
            job.progress.begin()
            fetched = fetcher.fetch(version, made, job.progress, before=before)
            with self._changed:
                if not job.progress.given_up.is_set():
                    self._files.install(version.model, version.number, made, fetched)
        finally:
            shutil.rmtree(made, ignore_errors=True)

    def _end(self, job: _Job, failure: str) -> None:
        place = (job.version.model, job.version.number)
        del self._jobs[place]
        if failure:
            before = self._failures.get(place)
            count = 1 if before is None else before.count + 1
            pause = min(FIRST_RETRY_SECONDS * 2 ** (count - 1), MAX_RETRY_SECONDS)
            retry_at = time.monotonic() + pause
            self._failures[place] = _Failure(job.identity, failure, count, retry_at)
            self._wake.set()  # an older version may now be wanted
        else:
            self._failures.pop(place, None)
        self._note()
        self._changed.notify_all()
        self.on_change()

    def _count(self, size: int) -> None:
        with self._changed:
            self._note(fetched_bytes=self.status.fetched_bytes + size)

    def _note(self, **changes: Any) -> None:
        """Replace the status with these `changes`, and update the derived fields."""
        with self._changed:
            failed = [Problem("", "", one.sentence) for one in self._failures.values()]
            changes["problems"] = (*self._listing_problems, *failed)
            changes["slow"] = tuple(
                Problem(str(job.version), "", str(job.progress))
                for job in self._jobs.values()
                if job.progress.slow
            )
            self.status = status = replace(self.status, **changes)
            if not status.settled and (status.synced or status.failure):
                self.status = replace(status, settled=self._is_settled(status))

    def _is_settled(self, status: MirrorStatus) -> bool:
        if status.failure:
            return any(self._files.numbers(name) for name in self._files.names())
        missing = [job for (name, _), job in self._jobs.items() if not self._files.numbers(name)]
        if self._soon or any(self._is_waited_for(job.progress) for job in missing):
            return False
        return not missing or any(self._files.numbers(name) for name in self._files.names())

    def _is_waited_for(self, progress: Progress) -> bool:
        """True if it is expected soon: not slow, and not queued behind MAX_FETCHES slow ones."""
        if not progress.began:
            return sum(job.progress.slow for job in self._jobs.values()) < MAX_FETCHES
        return not progress.slow
