"""A remote repository: its mirror's thread, and its problems in the log."""

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
    """Keeps the models folder in step with a remote repository, on a separate thread.

    metrics: The mirror's metrics.

    settings: The repository's address, and the folder of the mirror.
    """

    def __init__(self, settings: Settings) -> None:
        self._address = settings.remote
        largest = settings.max_model_mb
        self._mirror = Mirror(
            settings.remote,
            mirror_folder(settings.cache, settings.remote),
            max_bytes=available_memory() if largest is None else largest << 20,
            repeat=settings.watch_seconds,
            model_name=settings.model_name,
        )
        self.metrics = RemoteMetrics(lambda: self._mirror.status)
        self._uses: dict[str, ModelUse] = {}
        self._logged = MirrorStatus()

    @property
    def settled(self) -> bool:
        """True after the first full sync, whether or not every model was fetched."""
        return self._mirror.status.settled

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Why the repository, or versions in it, are not available."""
        status = self._mirror.status
        failure = [Problem("", "", status.failure)] if status.failure else []
        return (*failure, *status.problems, *status.slow)

    @property
    def loading_reason(self) -> str:
        """Why the first models are not loaded, while the mirror is not settled."""
        status, versions = self._mirror.status, self._mirror.fetching
        if status.failure:
            return status.failure
        listed = ", ".join(versions[:MAX_LISTED])
        more = ", …" if len(versions) > MAX_LISTED else ""
        what = f": {listed}{more}, {status.fetched_bytes >> 20:,} MiB so far" if versions else ""
        return f"fetching models from {self._address}{what}"

    def start(self, changed: asyncio.Event) -> None:
        """Start the mirror; `changed` is set on the running loop after each change."""
        loop = asyncio.get_running_loop()

        def notify() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(changed.set)

        self._mirror.on_change = notify
        Thread(target=self._mirror.run, args=(self._get_uses,), name="mirror", daemon=True).start()

    def wake(self) -> None:
        """Check the repository now."""
        self._mirror.wake()

    def close(self) -> None:
        """Stop checking and fetching."""
        self._mirror.close()

    def note(self, catalog: Catalog, pinned: Mapping[str, AbstractSet[int]]) -> None:
        """Record the use of each model for the mirror, and log new problems.

        catalog: The loaded and the failed versions.
        pinned: Versions by model that are wanted in addition to those of each model's policy.
        """
        self._uses = {
            name: _use(catalog.get(name), pinned.get(name, frozenset()))
            for name in catalog.keys() | pinned.keys()
        }
        before, self._logged = self._logged, self._mirror.status
        if self._logged.failure and self._logged.failure != before.failure:
            log.warning("remote repository failed", reason=self._logged.failure)
        elif before.failure and not self._logged.failure:
            log.info("remote repository answers again", repository=self._address)
        for problem in self._logged.problems:
            if problem not in before.problems:
                log.warning("remote repository problem", problem=str(problem))
        slow = {problem.file for problem in before.slow}
        for problem in self._logged.slow:
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
