"""What an operator's files say of models, followed: the folder, the rollouts, who may publish."""

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
from cohort.registry import LOOK_SECONDS
from cohort.rollouts.watcher import RolloutWatcher
from cohort.settings import Settings

Background = Callable[[], Coroutine[Any, Any, None]]
"""What runs in the background, for ever; it begins when it is called."""

GUARD_INTERVAL_SECONDS = 1.0
"""How often variants are judged, and decisions of other processes are read."""


class ModelFiles:
    """Has the core of a process serve what is in the models folder, as the other files say.

    watch: Looks at the files, and at others that are added.
    remote: The remote repository that the folder follows; None where it is none.
    rollouts: Follows the rollouts file, and the decisions in the state folder.
    trust: Follows the keys of which one must have signed a version; None where nobody must.
    loader: Has the registry load and unload.

    settings: The files.
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
        """What is wrong with the files, as messages."""
        rollouts = self.rollouts.problems(settled=self._core.registry.settled)
        trust = [] if self.trust is None else self.trust.problems
        return [*self.loader.problems, *rollouts, *trust]

    @property
    def loading_reason(self) -> str:
        """Why the first models are not loaded yet."""
        return self.loader.loading_reason or self.rollouts.loading_reason()

    @asynccontextmanager
    async def followed(self) -> AsyncIterator[Iterator[Background]]:
        """Look at the files that say what may be loaded; give what is to run in the background.

        Nothing is loaded before that runs.
        """
        if self.trust is not None:
            await self.trust.check_file()
        await self.rollouts.check_file()
        await self.rollouts.sync()
        if self.remote is None:
            yield self._background()
            return
        self.remote.start(self.loader.again)
        self.watch.on_look_now(self.remote.wake)
        try:
            yield self._background()
        finally:
            self.remote.close()

    def _background(self) -> Iterator[Background]:
        core, loader, watch = self._core, self.loader, self.watch
        yield partial(repeat, core.registry.look_at_engines, LOOK_SECONDS)
        yield partial(return_memory, core.memory)
        yield partial(attempt, loader.report_first)
        yield partial(watch.follow, loader.reconcile, lambda: loader.pause, loader.again)
        yield partial(watch.follow, self.rollouts.check_file)
        if self.trust is not None:
            yield partial(watch.follow, self.trust.check_file)
