"""The loads that go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from cohort.registry.actions import Load
from cohort.registry.source import Source
from cohort.session import CancellationToken


class Running(NamedTuple):
    """A load that goes on, or waits for its place."""

    source: Source
    token: CancellationToken
    task: asyncio.Task[None]


class Loads:
    """The loads that go on, or wait for their places: one of each version at a time.

    run: Does a load, and is cancelled where that is.
    on_over: Called after each load, with whether it was cancelled.
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
        """The models with a load that goes on."""
        return {model for model, _ in self._running}

    @property
    def stages(self) -> list[str]:
        """Each load, with what it is at, in words."""
        return [
            f"{model} {number} ({one.token.stage})"
            for (model, number), one in self._running.items()
        ]

    def goes_on(self, model: str) -> bool:
        """Whether a version of a model loads, or waits for its place."""
        return any(name == model for name, _ in self._running)

    def source(self, model: str, number: int) -> Source | None:
        """What a version is being loaded from; None where it is not."""
        running = self._running.get((model, number))
        return None if running is None else running.source

    def begin(self, load: Load) -> None:
        """Begin a load, of a version that has none."""
        token = CancellationToken()
        task = asyncio.create_task(self._run(load, token))
        self._running[load.model, load.number] = Running(load.source, token, task)

        def on_done(task: asyncio.Task[None]) -> None:
            del self._running[load.model, load.number]
            self._on_over(load, task.cancelled())

        task.add_done_callback(on_done)

    def cancel(self, model: str, number: int) -> None:
        """Cancel the load of a version, if there is one; that takes a moment."""
        running = self._running.get((model, number))
        if running is not None and not running.task.cancelling():
            running.task.cancel()

    def cancel_all(self) -> None:
        """Cancel every load, also of versions that no catalog names."""
        for model, number in list(self._running):
            self.cancel(model, number)

    async def wait_for_one(self, model: str) -> None:
        """Wait until a load of `model` is over; not at all where none goes on."""
        if tasks := [one.task for (name, _), one in self._running.items() if name == model]:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)

    async def wait(self, model: str | None = None) -> None:
        """Wait until no load of `model` goes on, nor follows; default None: of any model."""
        while any(model in {None, name} for name in self.models):
            await asyncio.wait(
                [one.task for (name, _), one in self._running.items() if model in {None, name}]
            )
