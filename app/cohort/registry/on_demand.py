"""A registry for more models than may be loaded at once."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from time import monotonic
from typing import Any

from cohort.errors import NotLoaded, NotReady, quoted
from cohort.registry.actions import NO_VERSIONS, Load
from cohort.registry.catalog import RESTING, State, VersionEntry
from cohort.registry.engine import EngineEvent, Site
from cohort.registry.registry import Registry
from cohort.repository import Snapshot

STAY_SECONDS = 0.5
"""Minimum time that a model stays loaded after its load and after each run.

Without it, if more models are requested at once than fit, models would unload each other before
they answer.
"""

REFUSED_SECONDS = 3.0
"""Time that a model is requested without success before a busy model is unloaded for it."""


class OnDemandRegistry(Registry):
    """A registry that limits the number of loaded models, and loads others on demand.

    The least recently used model makes room. The new model begins to load at once, while the last
    requests of the other run. Models that failed to load hold no place. An operator's loads may
    exceed the limit for a short time.

    most: The maximum of loaded models.
    at_start: The models that are loaded before a request asks for them, at most.
    others: The arguments of `Registry`.
    """

    def __init__(self, most: int, at_start: int, *args: Any, **others: Any) -> None:
        super().__init__(*args, **others)
        self._most = most
        self._at_start = at_start
        self._used: dict[str, float] = {}  # when a model last ran, on the monotonic clock
        self._refused: dict[str, tuple[float, float]] = {}  # when first, and when last
        self._waking: set[str] = set()  # models that load on demand

    def follow(
        self, snapshot: Snapshot, pinned: Mapping[str, AbstractSet[int]] = NO_VERSIONS
    ) -> None:
        """Follow as `Registry.follow` does; models found at the limit are not loaded."""
        resting = [name for name, reason in self._unloaded.items() if reason == RESTING]
        for name in resting:
            if name not in snapshot.models:
                del self._unloaded[name]
        places = self._at_start - len(self._holding())
        for name in snapshot.models:
            known = name in self.catalog or name in self._unloaded
            if not known and name not in self._used:  # `_used`: an operator has just requested it
                places -= 1
                if places < 0:
                    self._unloaded[name] = RESTING
        for name in [name for name in resting if name in self._unloaded][: max(places, 0)]:
            super().reload_model(name)
        super().follow(snapshot, pinned)
        self._trim()

    def find(self, model: str, version: str | None = None) -> VersionEntry:
        """Return `Registry.find`; for a default, raise NotReady during a load on demand."""
        if version is None and model in self._waking:
            raise NotReady(f"model {quoted(model)} is loading on demand; retry later")
        return super().find(model, version)

    def demand(self, model: str) -> None:
        """Load a model on demand. Raises NotLoaded while it loads, and NotReady if there is no
        room.
        """
        if self._unloaded.get(model) == RESTING:
            if not self._make_room(model):
                raise NotReady(
                    f"model {quoted(model)} is not loaded, and all {self._most} loaded models "
                    "(COHORT_MAX_LOADED_MODELS) are in use; retry later",
                )
            super().reload_model(model)
            self._waking.add(model)
            self._proceed([model])
        if model in self._waking:
            raise NotLoaded(model)

    async def load_over(self, model: str) -> None:
        """Wait until a load of a model ends; return at once if it has no load."""
        await self._loads.wait_for_one(model)

    def reload_model(self, model: str) -> None:
        """Reload a model as `Registry.reload_model` does; another makes room, now or once idle."""
        if self._unloaded.get(model) == RESTING:
            self._make_room(model)
        super().reload_model(model)
        self._used[model] = monotonic()

    def _on_load_over(self, load: Load, cancelled: bool) -> None:
        self._used[load.model] = monotonic()  # waiting requests use it now
        super()._on_load_over(load, cancelled)
        if not self._loads.goes_on(load.model):
            self._waking.discard(load.model)
            self._trim()

    # -- places

    def _holding(self) -> list[str]:
        """Return the models that hold a place: they are loaded, or loading."""
        return [
            name
            for name, model in self.catalog.items()
            if name not in self._unloaded
            and any(one.state is not State.UNAVAILABLE for one in model.versions.values())
        ]

    def _make_room(self, model: str) -> bool:
        """Return True if `model` may be loaded, after unloading another if necessary."""
        now = monotonic()
        first, last = self._refused.get(model, (now, now))
        first = now if now - last > REFUSED_SECONDS else first
        urgent = now - first > REFUSED_SECONDS
        if not self._leave(self._most - 1, urgent=urgent):
            self._refused[model] = first, now
            return False
        self._refused.pop(model, None)
        return True

    def _trim(self) -> None:
        """Unload models above the limit, after an operator's load or a retry."""
        self._leave(self._most)

    def _leave(self, most: int, *, urgent: bool = False) -> bool:
        """Unload the least recently used models; return True if at most `most` are left.

        urgent: True if busy models may be unloaded when no idle one is left; default False.
        """
        while len(holding := self._holding()) > most:
            candidates = [name for name in holding if self._is_idle(name)]
            if not candidates and urgent:
                candidates = [name for name in holding if not self._loads.goes_on(name)]
            if not candidates:
                return False
            self._put_aside(min(candidates, key=self._last_used), RESTING)
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

    def _site(self, model: str, number: int) -> Site:
        """Return `Registry._site`; each run also counts as a use."""
        site = super()._site(model, number)

        def observe(event: EngineEvent) -> None:
            self._used[model] = monotonic()
            site.observe(event)

        return replace(site, observe=observe)
