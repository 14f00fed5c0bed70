"""A registry for more models than may be loaded at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from time import monotonic
from typing import Any

from app.batching import BatchEvent, BatchObserver
from app.errors import NotLoaded, NotReady, quoted
from app.registry.actions import NO_VERSIONS, Load
from app.registry.catalog import RESTING
from app.registry.registry import Registry
from app.repository import Snapshot

STAY_SECONDS = 0.5
"""How long a model stays loaded, at least, once it is loaded and after each run.

Else models would chase each other out, before they answered, where more are asked for at once than
there is room for.
"""


class OnDemandRegistry(Registry):
    """A registry that holds at most so many models loaded, and loads others when asked for them.

    The model that has not run for the longest time makes room. The one that takes its place begins
    to load at once, beside the last requests of the other.

    most: How many models may be loaded.
    others: As `Registry` takes them.
    """

    def __init__(
        self, most: int, *, count: Callable[[str, str], BatchObserver], **others: Any
    ) -> None:
        super().__init__(count=self._noting_runs(count), **others)
        self._most = most
        self._used: dict[str, float] = {}  # when a model last ran, on the monotonic clock

    def follow(
        self, snapshot: Snapshot, pinned: Mapping[str, AbstractSet[int]] = NO_VERSIONS
    ) -> None:
        """As `Registry.follow`; models that are found when the limit is reached rest."""
        for name in [name for name, why in self._unloaded.items() if why == RESTING]:
            if name not in snapshot.models:
                del self._unloaded[name]
        loaded = [name for name in snapshot.models if name not in self._unloaded]
        known = [name for name in loaded if name in self.catalog]
        new = [name for name in loaded if name not in self.catalog]
        for name in new[max(0, self._most - len(known)) :]:
            self._unloaded[name] = RESTING
        super().follow(snapshot, pinned)

    def demand(self, model: str) -> None:
        """Load a model that rests. Raises NotLoaded while it loads, and where there is no room."""
        if self._unloaded.get(model) == RESTING:
            if not self._make_room():
                raise NotReady(
                    f"model {quoted(model)} is not loaded, and each of the {self._most} models "
                    "that are (COHORT_MAX_LOADED_MODELS) was used just now",
                    retry_after=1.0,
                )
            super().reload_model(model)
            self._used[model] = monotonic()
            self._proceed([model])
        if self._loads.goes_on(model):
            raise NotLoaded(model)

    def reload_model(self, model: str) -> None:
        """As `Registry.reload_model`; another model makes room, if one can."""
        if model in self._unloaded:
            self._make_room()
        super().reload_model(model)
        self._used[model] = monotonic()

    def _on_load_over(self, load: Load, cancelled: bool) -> None:
        self._used[load.model] = monotonic()  # who waited for it asks now
        super()._on_load_over(load, cancelled)

    def _make_room(self) -> bool:
        """Whether another model may be loaded, if need be in place of one that rests from now."""
        while len(loaded := self.catalog.keys() - self._unloaded.keys()) >= self._most:
            idle = [name for name in loaded if self._is_idle(name)]
            if not idle:
                return False
            self._put_aside(min(idle, key=self._last_used), RESTING)
        return True

    def _is_idle(self, model: str) -> bool:
        held = any(
            one.engine is not None and one.engine.leases.count
            for one in self.catalog[model].versions.values()
        )
        recent = monotonic() - self._last_used(model) < STAY_SECONDS
        return not (held or recent or self._loads.goes_on(model))

    def _last_used(self, model: str) -> float:
        return self._used.get(model, 0.0)

    def _noting_runs(
        self, count: Callable[[str, str], BatchObserver]
    ) -> Callable[[str, str], BatchObserver]:
        def counting(model: str, version: str) -> BatchObserver:
            counted = count(model, version)

            def observe(event: BatchEvent) -> None:
                self._used[model] = monotonic()
                counted(event)

            return observe

        return counting
