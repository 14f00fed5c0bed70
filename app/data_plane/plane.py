"""Who answers a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NoReturn

from app.data_plane.lease import Lease, Served, SharedLease
from app.errors import CohortError, InvalidInput, NotFound, NotReady, Overloaded, quoted
from app.metrics import Metrics
from app.registry import Catalog, Registry
from app.rollouts import LiveRollout, Rollouts, Sticky

KeyOf = Callable[[Sticky], str | None]
"""Gives what a request has in the header or parameter that keeps its caller on a variant."""


class DataPlane:
    """Callers' way in."""

    def __init__(
        self,
        registry: Registry,
        metrics: Metrics,
        rollouts: Rollouts | None = None,
        *,
        default_model: str | None = None,
        max_concurrency: int = 4096,
        gather: Callable[[Callable[[], None]], None] = lambda collect: collect(),
    ) -> None:
        self._registry = registry
        self._metrics = metrics
        self._rollouts = rollouts
        self._live: Mapping[str, LiveRollout] = {} if rollouts is None else rollouts.live
        self._default_model = default_model
        self._max_concurrency = max_concurrency
        self._served: dict[tuple[str, str | None], Served] = {}
        self._served_from: Catalog | None = None
        self._usual_model = default_model  # who is asked where no model is named
        self.gather = gather  # calls what it is given at the end of this turn of the loop
        self.open_leases = 0
        self._reading = 0  # requests whose bodies are read, to get a lease then
        self.closed = False  # draining: no new requests

    def pick(
        self,
        model: str | None,
        version: str | None = None,
        *,
        key_of: KeyOf | None = None,
        label: str | None = None,
    ) -> Lease:
        """Choose who answers: the model's rollout does, or else it is the highest that is READY.

        `version` or `label`, the name of a variant, pins one. `key_of` is asked only where the
        rollout keeps callers on their variants. `model` may be None where the server has one model
        or a default. Raises InvalidInput, ModelNotFound, NotFound, VersionNotFound, NotReady or
        Overloaded, and counts what it raises if the model is known.
        """
        if self._served_from is not self._registry.catalog:
            self._forget()
        name = model if model is not None else self._usual_model or self._no_model()
        variant, live = "", None
        try:
            if self.closed:
                raise NotReady("the server is shutting down")
            self._check_room(1)
            if label is not None:
                variant, version = label, self._labelled(name, label)
            elif version is None and (live := self._live.get(name)) is not None:
                variant, version = self._choose(name, live, key_of)
            served = self._served.get((name, version)) or self._serve(name, version)
        except CohortError as error:
            self.refused(name, error)
            raise
        served.loaded.leases += 1
        self.open_leases += 1
        return Lease(self, served, variant, live)

    def begin_reading(self) -> None:
        """Count a request whose body takes a while to read. Raises Overloaded."""
        self._check_room(1)
        self._reading += 1

    def end_reading(self) -> None:
        """What `begin_reading` counted is read, or given up."""
        self._reading -= 1

    def _check_room(self, count: int) -> None:
        in_hand = self.open_leases + self._reading
        if in_hand + count > self._max_concurrency:
            raise Overloaded(f"the server has {in_hand} requests in hand already")

    def coalescing_target(self, model: str | None) -> Served | None:
        """Who answers requests that came in one turn of the loop; None where each goes alone."""
        if self._served_from is not self._registry.catalog:
            self._forget()
        name = self._usual_model if model is None else model
        if name is None or name in self._live:
            return None
        return self._served.get((name, None))  # the first request goes alone: it is not there yet

    def share(self, served: Served, started: float, count: int) -> SharedLease:
        """A lease for requests that came in one turn. Raises NotReady or Overloaded, uncounted."""
        if self.closed:
            raise NotReady("the server is shutting down")
        self._check_room(count)
        return SharedLease(self, served, started, count)

    def _forget(self) -> None:
        """Begin anew with another catalog."""
        catalog = self._served_from = self._registry.catalog
        self._served.clear()
        self._usual_model = self._default_model
        if self._usual_model is None and len(catalog) == 1:
            (self._usual_model,) = catalog

    def _serve(self, name: str, version: str | None) -> Served:
        """The version that answers; remembered, until the catalog is another."""
        entry = self._registry.find(name, version)
        if entry.loaded is None:
            raise NotReady(f"version {entry.number} of model {quoted(name)} is not loaded")
        number = str(entry.number)
        served = Served(name, number, entry.loaded, self._metrics.version(name, number))
        self._served[name, version] = served
        return served

    def _choose(self, name: str, live: LiveRollout, key_of: KeyOf | None) -> tuple[str, str]:
        sticky = live.rollout.sticky
        key = None if sticky is None or key_of is None else key_of(sticky) or None
        ready = self._registry.model(name).ready
        chosen = live.choose(key, ready)
        if chosen.version not in ready:
            raise NotReady(
                f"version {chosen.version} of model {quoted(name)}, its rollout's baseline, is not "
                "ready"
            )
        return chosen.name, str(chosen.version)

    def _labelled(self, name: str, label: str) -> str:
        self._registry.model(name)
        if self._rollouts is None:
            raise NotFound(f"model {quoted(name)} has no rollout, and so no labels")
        return str(self._rollouts.version_of(name, label))

    def refused(self, model: str | None, error: CohortError) -> None:
        """Count a request that never got a lease; unknown models are not counted by name."""
        name = model if model is not None else self._default_model
        if name is None or name not in self._registry.catalog:
            return
        counts = self._metrics.version(name, "")
        counts.request("", error.code, 0.0)
        if isinstance(error, Overloaded | NotReady):
            counts.refuse(error.code)

    def _no_model(self) -> NoReturn:
        names = self._registry.catalog
        if not names:
            raise NotReady("no model is loaded yet")
        raise InvalidInput(f"name a model: the server has {', '.join(map(quoted, names))}")
