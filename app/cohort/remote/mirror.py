"""Keeping a local folder in step with a remote repository: what to fetch, and what to remove.

Nothing is removed unless a listing succeeded, and nothing of a model as long as what is wanted of
it is not here. See `cohort.remote.mirror_files` for what is where.
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
from cohort.remote.looking import look
from cohort.remote.mirror_files import MirrorFiles
from cohort.remote.pace import Progress
from cohort.remote.store import RemoteStore
from cohort.repository import ConfigProblems, ModelConfig, Problem, load_model_config

REMOTE_LOOK_SECONDS = 10.0
"""Between two looks: a listing costs money and, of a large repository, time."""

REMOTE_QUIET_SECONDS = 2.0
"""How long no file of a version may have changed for it to be whole; a look is as soon as that."""

REMOTE_EMPTY_SECONDS = 10.0
"""How long a repository must have shown no model for all of them to be gone."""

FETCHES_AT_ONCE, MOST_FETCHES = 4, 16
"""Versions at a time; the second where slow ones are among them, which leave others their turn."""

PACE_SECONDS = 2.0
"""How often it is looked at how fast versions come."""

FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 2.0, 300.0
"""Until a version that could not be fetched is tried again, twice as long each time."""

MAX_CONFIG_BYTES = 1 << 20

Uses = Mapping[str, ModelUse]

Place = tuple[str, int]
"""A model's name, and a version's number."""


@dataclass(frozen=True, slots=True)
class MirrorStatus:
    """How a mirror does.

    trouble: Why the last look failed; empty where it did not.
    problems: What is wrong in the repository, and why versions of it are not here.
    slow: What comes slowly, at which rate.
    looked: When a look last succeeded, in seconds since 1970; 0: never.
    fetched_bytes: Bytes that have come since the start.
    settled: Whether all models were looked for once, and fetched or found wanting. Models of which
        a version is here are not waited for; nor are others while the repository cannot be reached,
        or while they come slowly and any model is here.
    follows: Whether another process keeps the folder in step.
    """

    trouble: str = ""
    problems: tuple[Problem, ...] = ()
    slow: tuple[Problem, ...] = ()
    looked: float = 0.0
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
    """Keeps a folder in step with a repository. `look` is called on one thread, the rest on any.

    models: The folder that is served.
    status: How it does; replaced by each change.
    on_change: Called on any thread, also with locks held, after a look and after each version.

    address: The repository's, as `check_remote` gives it.
    folder: The mirror's folder.
    max_bytes: The most bytes of a version; default None: any number.
    quiet: Seconds for which no file of a version may have changed; 0 takes everything as it is.
    repeat: Seconds between two looks of `run`; REMOTE_LOOK_SECONDS at least, 0: only when woken.
    """

    def __init__(
        self,
        address: str,
        folder: Path,
        *,
        max_bytes: int | None = None,
        quiet: float = REMOTE_QUIET_SECONDS,
        repeat: float = REMOTE_LOOK_SECONDS,
    ) -> None:
        self.status = MirrorStatus()
        self.on_change: Callable[[], None] = lambda: None
        self._address, self._max_bytes = address, max_bytes
        self._quiet, self._repeat = quiet, repeat
        self._files = MirrorFiles(folder, address)
        self.models = self._files.models
        self._fetcher: Fetcher | None = None
        self._changed = Condition()  # guards the files, jobs, failures and the status
        self._jobs: dict[Place, _Job] = {}
        self._failures: dict[Place, _Failure] = {}
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._threads = 0
        self._seen: dict[Place, tuple[str, float]] = {}  # identity, and since when
        self._soon = False  # whether a version changed just now
        self._configs: dict[str, ModelConfig] = {}
        self._listing_problems: tuple[Problem, ...] = ()
        self._empty_since: float | None = None
        self._wake = Event()
        self._closed = False

    def run(self, uses: Callable[[], Uses | None]) -> None:
        """Look now and then, until `close`.

        uses: Returns what a server makes of each model; None while it does not know.
        """
        while not self._closed:
            began = time.monotonic()
            self._wake.clear()
            self.look(uses())
            self.on_change()
            pause = max(REMOTE_LOOK_SECONDS, self._repeat, 10 * (time.monotonic() - began))
            if self._soon:
                pause = REMOTE_QUIET_SECONDS
            self._rest(pause if self._soon or self._repeat else inf)

    def _rest(self, seconds: float) -> None:
        """Wait until it is time to look, or `wake`; meanwhile see how fast versions come."""
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0:
            if not self._jobs:
                self._wake.wait(None if left == inf else left)
                return
            if self._wake.wait(min(left, PACE_SECONDS)):
                return
            self._look_at_pace()

    def _look_at_pace(self) -> None:
        with self._changed:
            before = self.status
            for job in self._jobs.values():
                job.progress.look()
            if not self._closed:
                self._have_threads()
            self._note()
            changed = before.settled != self.status.settled or before.slow != self.status.slow
        if changed:
            self.on_change()

    def wake(self) -> None:
        """Have `run` look now."""
        self._wake.set()

    def look(self, uses: Uses | None = None) -> None:
        """Look at the repository, begin to fetch what is wanted, and remove what is gone.

        uses: What a server makes of each model; default None: unknown, and nothing that is still
            there is removed.

        Blocks for as long as listing takes. Never raises: see `status`.
        """
        try:
            self._look(uses)
        except RemoteFailed as error:
            self._note(trouble=str(error))
        except OSError as error:
            why = error.strerror or str(error)
            self._note(trouble=f"{self._address} cannot be kept in COHORT_CACHE: {why}")

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until nothing is being fetched; whether that came about within `seconds`."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._jobs or self._closed, seconds)

    @property
    def fetching(self) -> list[str]:
        """The versions that are being fetched, or will be."""
        with self._changed:
            return [str(job.version) for job in self._jobs.values()]

    def close(self) -> None:
        """Stop fetching; what has come of a file is continued by the next process."""
        with self._changed:
            self._closed = True
            for job in self._jobs.values():
                job.progress.given_up.set()
            for _ in range(self._threads):
                self._queue.put(None)
            self._files.unlock()
            self._changed.notify_all()
        self._wake.set()

    # -- one look

    def _look(self, uses: Uses | None) -> None:
        with self._changed:
            if self._closed:
                return
            if not self._files.lock():
                self._note(follows=True, trouble="", settled=True)
                return
        if self._fetcher is None:
            self._fetcher = self._make_fetcher(RemoteStore(self._address))
        store = self._fetcher.store
        listing = arrange(look(store, known=self._files.names()))
        if self._is_empty_for_now(listing):
            raise RemoteFailed(f"{self._address} has no model any more; what is here stays for now")
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
            self._note(trouble="", follows=False, looked=time.time())

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
        """Have a model's config here as it is there."""
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
        with suppress(ConfigProblems):  # else the last that was valid
            self._configs[name] = load_model_config(self.models / name)
        return []

    def _follow(self, name: str, model: RemoteModel, use: ModelUse | None) -> list[RemoteVersion]:
        """Begin to fetch versions of a model, or remove some; those that are wanted, and not here.

        use: None where it is not known.
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
        """Whether nothing of it changed of late: by its times, or because it is what it was."""
        place, identity, now = (version.model, version.number), version.identity, time.monotonic()
        before, since = self._seen.get(place, ("", now))
        since = since if before == identity else now
        self._seen[place] = identity, since
        quiet = time.time() - version.modified >= self._quiet or now - since >= self._quiet
        self._soon |= not quiet
        return quiet

    def _forget(self, listing: Listing) -> None:
        """Forget what is no longer in the repository, or is another version by now."""
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
                job.progress.given_up.set()  # a later look begins anew
            return
        if failure is not None and time.monotonic() < failure.retry_at:
            return
        progress = Progress(version.bytes_known, self._count)
        self._jobs[place] = job = _Job(version, identity, progress)
        self._queue.put(job)
        self._have_threads()

    def _have_threads(self) -> None:
        """Have a thread for each version that may be fetched now."""
        while self._threads < min(self._at_once, len(self._jobs)):
            self._threads += 1
            Thread(target=self._work, name=f"fetch-{self._threads}", daemon=True).start()

    @property
    def _at_once(self) -> int:
        slow = sum(job.progress.slow for job in self._jobs.values())
        return min(FETCHES_AT_ONCE + slow, MOST_FETCHES)

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            failure = ""
            try:
                self._fetch(job)
            except RemoteFailed as error:
                failure = str(error)
            except GivenUp:
                pass
            except Exception as error:  # noqa: BLE001 - the thread has others to fetch
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
            pause = min(FIRST_RETRY_SECONDS * 2 ** (count - 1), LONGEST_RETRY_SECONDS)
            retry_at = time.monotonic() + pause
            self._failures[place] = _Failure(job.identity, failure, count, retry_at)
            self._wake.set()  # an older version may be wanted in its place
        else:
            self._failures.pop(place, None)
        self._note()
        self._changed.notify_all()
        self.on_change()

    def _count(self, size: int) -> None:
        with self._changed:
            self._note(fetched_bytes=self.status.fetched_bytes + size)

    def _note(self, **changes: Any) -> None:
        """Replace the status; what follows from what else is known is worked out."""
        with self._changed:
            failed = [Problem("", "", one.sentence) for one in self._failures.values()]
            changes["problems"] = (*self._listing_problems, *failed)
            changes["slow"] = tuple(
                Problem(str(job.version), "", str(job.progress))
                for job in self._jobs.values()
                if job.progress.slow
            )
            self.status = status = replace(self.status, **changes)
            if not status.settled and (status.looked or status.trouble):
                self.status = replace(status, settled=self._is_settled(status))

    def _is_settled(self, status: MirrorStatus) -> bool:
        if status.trouble:
            return any(self._files.numbers(name) for name in self._files.names())
        missing = [job for (name, _), job in self._jobs.items() if not self._files.numbers(name)]
        if self._soon or any(self._is_waited_for(job.progress) for job in missing):
            return False
        return not missing or any(self._files.numbers(name) for name in self._files.names())

    def _is_waited_for(self, progress: Progress) -> bool:
        """Whether it comes soon: neither slow, nor behind as many slow ones as there may be."""
        if not progress.began:
            return sum(job.progress.slow for job in self._jobs.values()) < MOST_FETCHES
        return not progress.slow
