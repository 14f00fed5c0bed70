"""The loads in progress."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from cohort.registry.actions import Load
from cohort.registry.source import Source
from cohort.session import CancellationToken


class Running(NamedTuple):
    """A load that is running or waits for its place."""

    source: Source
    token: CancellationToken
    task: asyncio.Task[None]


class Loads:
    """The loads in progress, running or waiting for their places: one of each version at a time.

    run: Performs a load; cancelling it cancels the load.
    on_over: Called after each load, with True if it was cancelled.
    """

    def __init__(
        self,
        run: Callable[[Load, CancellationToken], Coroutine[Any, Any, None]],
        on_over: Callable[[Load, bool], None],
    ) -> None:
        self._run = run
        self._on_over = on_over
        self._running: dict[tuple[str, int], Running] = {}

    @property
    def models(self) -> set[str]:
        """The models with a load in progress."""
        return {model for model, _ in self._running}

    @property
    def stages(self) -> list[str]:
        """Each load with its current stage, in words."""
        return [
            f"{model} {number} ({one.token.stage})"
            for (model, number), one in self._running.items()
        ]

    def goes_on(self, model: str) -> bool:
        """Return True if a version of a model is loading, or waits for its place."""
        return any(name == model for name, _ in self._running)

    def source(self, model: str, number: int) -> Source | None:
        """Return the source that a version is being loaded from; None if it is not loading."""
        running = self._running.get((model, number))
        return None if running is None else running.source

    def begin(self, load: Load) -> None:
        """Begin a load of a version without a load in progress."""
        token = CancellationToken()
        task = asyncio.create_task(self._run(load, token))
        self._running[load.model, load.number] = Running(load.source, token, task)

        def on_done(task: asyncio.Task[None]) -> None:
            del self._running[load.model, load.number]
            self._on_over(load, task.cancelled())

        task.add_done_callback(on_done)

    def cancel(self, model: str, number: int) -> None:
        """Begin to cancel the load of a version, if there is one."""
        running = self._running.get((model, number))
        if running is not None and not running.task.cancelling():
            running.task.cancel()

    def cancel_all(self) -> None:
        """Cancel every load, also of versions that are not in the catalog."""
        for model, number in list(self._running):
            self.cancel(model, number)

    async def wait_for_one(self, model: str) -> None:
        """Wait until a load of `model` ends; return at once if it has no load."""
        if tasks := [one.task for (name, _), one in self._running.items() if name == model]:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)

    async def wait(self, model: str | None = None) -> None:
        """Wait until no load of `model` is running or follows; default None: of any model."""
        while any(model in {None, name} for name in self.models):
            await asyncio.wait(
                [one.task for (name, _), one in self._running.items() if model in {None, name}]
            )
