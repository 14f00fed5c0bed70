"""The operator's files about models: the models folder, the rollouts, the trusted keys."""

from __future__ import annotations

from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterator,
    Sequence,
)
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from cohort.auth import KeyWatcher
from cohort.process.background import FileWatch, attempt, repeat
from cohort.process.core import Core
from cohort.process.key_files import watch_trust
from cohort.process.model_loader import ModelLoader
from cohort.process.remote_models import RemoteModels
from cohort.process.resources import return_memory
from cohort.registry import CHECK_SECONDS
from cohort.rollouts.watcher import RolloutWatcher
from cohort.settings import Settings

Background = Callable[[], Coroutine[Any, Any, None]]
"""Makes a coroutine that runs in the background without end."""

GUARD_INTERVAL_SECONDS = 1.0
"""Interval of judging variants, and of reading decisions of other processes."""


class ModelFiles:
    """Makes the core of a process follow the models folder and the other files.

    watch: Reads the files, and others that are added.
    remote: The remote repository that the folder mirrors; None: there is none.
    rollouts: Follows the rollouts file, and the decisions in the state folder.
    trust: Follows the trusted keys; None if signatures are not required.
    loader: Makes the registry load and unload.

    settings: The paths of the files.
    core: Loads and serves.
    """

    def __init__(self, settings: Settings, core: Core) -> None:
        self._core = core
        self.watch = FileWatch(settings.watch_seconds)
        self.remote = RemoteModels(settings) if settings.remote else None
        self.rollouts = RolloutWatcher(settings.rollouts, settings.state, core.rollouts)
        self.trust: KeyWatcher[Any] | None = None
        if settings.trusted_keys is not None and core.trust is not None:
            self.trust = watch_trust(settings.trusted_keys, core.trust, core.registry)
        self.loader = ModelLoader(
            settings, core.registry, core.rollouts, self.rollouts, core.start_up, self.remote
        )

    @property
    def problems(self) -> Sequence[object]:
        """The problems of the files, as messages."""
        rollouts = self.rollouts.problems(settled=self._core.registry.settled)
        trust = [] if self.trust is None else self.trust.problems
        return [*self.loader.problems, *rollouts, *trust]

    @property
    def loading_reason(self) -> str:
        """The reason why the first models are not loaded yet."""
        return self.loader.loading_reason or self.rollouts.loading_reason()

    @asynccontextmanager
    async def followed(self) -> AsyncIterator[Iterator[Background]]:
        """Read the files that determine which versions may load; yield background functions.

        No model is loaded before the functions run.
        """
        if self.trust is not None:
            await self.trust.check_file()
        await self.rollouts.check_file()
        await self.rollouts.sync()
        if self.remote is None:
            yield self._background()
            return
        self.remote.start(self.loader.again)
        self.watch.on_check_now(self.remote.wake)
        try:
            yield self._background()
        finally:
            self.remote.close()

    def _background(self) -> Iterator[Background]:
        core, loader, watch = self._core, self.loader, self.watch
        yield partial(repeat, core.registry.check_engines, CHECK_SECONDS)
        yield partial(return_memory, core.memory)
        yield partial(attempt, loader.report_first)
        yield partial(watch.follow, loader.reconcile, lambda: loader.pause, loader.again)
        yield partial(watch.follow, self.rollouts.check_file)
        if self.trust is not None:
            yield partial(watch.follow, self.trust.check_file)
