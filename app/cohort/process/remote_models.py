"""A remote repository beside the event loop: its mirror's thread, and what is said of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from threading import Thread

import structlog

from cohort.errors import MAX_LISTED
from cohort.metrics import RemoteMetrics
from cohort.registry import NOT_FAILED, Catalog, ModelEntry, State
from cohort.remote import Mirror, MirrorStatus, ModelUse
from cohort.repository import Problem
from cohort.session import available_memory
from cohort.settings import Settings
from cohort.system.remote_address import mirror_folder

log = structlog.get_logger("cohort")


class RemoteModels:
    """Keeps the models folder in step with a remote repository, on a thread of its own.

    metrics: How that goes, for a scrape.

    settings: The repository's address, and where the mirror is.
    """

    def __init__(self, settings: Settings) -> None:
        self._address = settings.remote
        largest = settings.max_model_mb
        self._mirror = Mirror(
            settings.remote,
            mirror_folder(settings.cache, settings.remote),
            max_bytes=available_memory() if largest is None else largest << 20,
            repeat=settings.watch_seconds,
        )
        self.metrics = RemoteMetrics(lambda: self._mirror.status)
        self._uses: dict[str, ModelUse] = {}
        self._said = MirrorStatus()

    @property
    def settled(self) -> bool:
        """Whether the first models have been fetched, or cannot be."""
        return self._mirror.status.settled

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Why the repository, or versions in it, cannot be had."""
        status = self._mirror.status
        trouble = [Problem("", "", status.trouble)] if status.trouble else []
        return (*trouble, *status.problems, *status.slow)

    @property
    def loading_reason(self) -> str:
        """What is to be said while it is not settled."""
        status, versions = self._mirror.status, self._mirror.fetching
        if status.trouble:
            return status.trouble
        listed = ", ".join(versions[:MAX_LISTED])
        more = ", …" if len(versions) > MAX_LISTED else ""
        what = f": {listed}{more}, {status.fetched_bytes >> 20:,} MiB so far" if versions else ""
        return f"fetching models from {self._address}{what}"

    def start(self, changed: asyncio.Event) -> None:
        """Begin to look; `changed` is set on the running loop whenever the folder has changed."""
        loop = asyncio.get_running_loop()

        def tell() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(changed.set)

        self._mirror.on_change = tell
        Thread(target=self._mirror.run, args=(self._get_uses,), name="mirror", daemon=True).start()

    def wake(self) -> None:
        """Look now."""
        self._mirror.wake()

    def close(self) -> None:
        """Stop looking and fetching."""
        self._mirror.close()

    def note(self, catalog: Catalog, pinned: Mapping[str, AbstractSet[int]]) -> None:
        """Note what the process makes of each model, and log what is new.

        catalog: What is loaded, and what failed to load.
        pinned: Versions by model that are wanted besides those of each model's policy.
        """
        self._uses = {
            name: _use(catalog.get(name), pinned.get(name, frozenset()))
            for name in catalog.keys() | pinned.keys()
        }
        before, self._said = self._said, self._mirror.status
        if self._said.trouble and self._said.trouble != before.trouble:
            log.warning("remote repository failed", reason=self._said.trouble)
        elif before.trouble and not self._said.trouble:
            log.info("remote repository answers again", repository=self._address)
        for problem in self._said.problems:
            if problem not in before.problems:
                log.warning("remote repository problem", problem=str(problem))
        slow = {problem.file for problem in before.slow}
        for problem in self._said.slow:
            if problem.file not in slow:
                log.warning("remote repository is slow", problem=str(problem))

    def _get_uses(self) -> Mapping[str, ModelUse] | None:
        return self._uses if self._mirror.status.settled else None


def _use(model: ModelEntry | None, pinned: AbstractSet[int]) -> ModelUse:
    if model is None:
        return ModelUse(pinned)
    failed = {
        number
        for number, version in model.versions.items()
        if version.state is State.UNAVAILABLE and version.reason not in NOT_FAILED
    }
    loaded = {number for number, version in model.versions.items() if version.engine is not None}
    return ModelUse(pinned, failed | model.held_back.keys(), loaded)
