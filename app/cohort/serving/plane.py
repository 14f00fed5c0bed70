"""The data plane: which version answers a request."""

from __future__ import annotations

import asyncio
from asyncio import CancelledError
from collections.abc import Callable, Mapping
from time import monotonic
from types import MappingProxyType
from typing import NoReturn

from cohort.codec import Asked
from cohort.connections.memory import MemoryBudget
from cohort.errors import (
    Cancelled,
    CohortError,
    DeadlineExceeded,
    InvalidInput,
    NotLoaded,
    NotReady,
    available,
    quoted,
)
from cohort.metrics import Metrics
from cohort.registry import Catalog, FilteredRegistry, Readable, seconds_until_ready, why_not_ready
from cohort.rollouts import LiveRollout, Rollouts
from cohort.serving.coalescing import Coalescer
from cohort.serving.lease import GroupLease, Lease
from cohort.serving.limit import ConcurrencyLimit
from cohort.serving.observing import Observer, RequestCounts
from cohort.serving.request_context import NOBODY, RequestContext, notes_of
from cohort.serving.served import ServedVersion
from cohort.serving.targets import Chosen, RolloutTarget, Target
from cohort.serving.traced import GroupSpans, TracedCounts

MAX_LOAD_SECONDS = 30.0
"""Maximum time that a request waits for a model that is loaded on demand."""

MAX_VIEWS = 1024
"""Views of a plane that are kept, one for each set of models visible to a caller."""


class DataPlane:
    """Gives requests leases on versions, for all adapters.

    registry: Holds the catalog of loaded versions.
    metrics: Holds the counters of requests.
    rollouts: Choose the version of a model that has a rollout.
    default_model: Answers requests that name no model; None: the only model, if there is one.
    limit: The maximum and the count of requests in progress in this process.
    memory: The memory that requests may use in this process; adapters count their bytes in it.
    gather: Calls a function once all sockets of this event-loop iteration have been read, before
        the scheduler looks for the next batch.
    observer: Is notified of every request; default: RequestCounts, in `metrics`.
    traced: True if requests may have spans; default: False.
    """

    def __init__(
        self,
        registry: Readable,
        metrics: Metrics,
        rollouts: Rollouts,
        *,
        default_model: str | None,
        limit: ConcurrencyLimit,
        memory: MemoryBudget,
        gather: Callable[[Callable[[], None]], None],
        observer: Observer | None = None,
        traced: bool = False,
    ) -> None:
        self._registry = registry
        self._metrics = metrics
        counts = TracedCounts if traced else RequestCounts
        self.observer = counts(metrics) if observer is None else observer
        self._traced = traced
        self._rollouts = rollouts
        self._live: Mapping[str, LiveRollout] = rollouts.live
        self._default_model = default_model
        self._served: dict[tuple[str, str | None], ServedVersion] = {}
        self._served_from: Catalog | None = None  # the catalog that `_served` belongs to
        self._unnamed_model = default_model  # answers requests that name no model
        self._limit = limit
        self._gather = gather
        self._views: dict[frozenset[str], DataPlane] = {}
        self.memory = memory
        self.coalescer = Coalescer(
            target=self._find_coalescing_target,
            admit=self._admit,
            lease=self._lease_group,
            room=self._room,
            refused=self.refused,
            observer=self.observer,
            gather=gather,
            spans=GroupSpans() if traced else None,
        )

    def close(self) -> None:
        """Accept no more requests; those in progress finish."""
        self._limit.closed = True

    def limited_to(self, models: frozenset[str] | None) -> DataPlane:
        """Return a view of this plane for callers with access to `models`; None: all models.

        For these callers, other models do not exist. Their requests count towards the same limits,
        and are coalesced only with each other.
        """
        if models is None:
            return self
        view = self._views.get(models)
        if view is None:
            if len(self._views) >= MAX_VIEWS:
                self._views.clear()
            view = self._views[models] = DataPlane(
                FilteredRegistry(self._registry, models),
                self._metrics,
                self._rollouts,
                default_model=self._default_model if self._default_model in models else None,
                limit=self._limit,
                memory=self.memory,
                gather=self._gather,
                observer=self.observer,
                traced=self._traced,
            )
        return view

    def pick(
        self,
        model: str | None,
        version: str | None = None,
        *,
        label: str | None = None,
        context: RequestContext = NOBODY,
        parameters: Mapping[str, object] = MappingProxyType({}),
    ) -> Lease:
        """Lease the version that answers: the rollout's choice, or else the highest READY one.

        model: The model's name; None: the default model, or the only one.
        version: The version that the request pins; default None: no version.
        label: The variant that the request pins; default None: no variant.
        context: Contains the request's priority, and the sticky key for a model with a rollout.
        parameters: The request's parameters; one of them may be the sticky key.

        Raises InvalidInput, ModelNotFound, NotFound, VersionNotFound, NotReady or Overloaded, and
        counts the error if the model is known. Raises NotLoaded, which is not counted, if
        `pick_loaded` can wait for the model.
        """
        if self._served_from is not self._registry.catalog:
            self._forget()
        name = model if model is not None else self._unnamed_model or self._no_model()
        variant, caller, live = "", None, None
        try:
            self._check_open()
            self._limit.check(1, context.priority)
            if label is not None:
                variant, version = label, self._find_labelled(name, label)
            elif version is None and (live := self._live.get(name)) is not None:
                variant, version, caller = self._choose(name, live, context, parameters)
            served = self._served.get((name, version)) or self._serve(name, version)
        except CohortError as error:
            if not isinstance(error, NotLoaded):
                self.refused(name, error)
            raise
        observed = None if live is None else live.observe(variant, int(served.version), caller)
        lease = Lease(served, self._limit, self.observer, context, variant, observed)
        if served.noted is not None:
            lease.notes = notes_of(context, parameters)
        return lease

    async def pick_loaded(
        self, error: NotLoaded, pick: Callable[[], Lease], seconds: float | None, priority: int = 0
    ) -> tuple[Lease, float | None]:
        """Pick after a model that is loaded on demand is ready.

        error: The error that `pick` raised.
        pick: Is called again after each load.
        seconds: The caller's limit, which includes the wait; None if it set no limit.
        priority: The request's priority; default 0.

        Returns the lease, and the remainder of `seconds`. Raises DeadlineExceeded, NotReady after
        MAX_LOAD_SECONDS, or as `pick`; all are counted.
        """
        since = monotonic()
        while True:
            try:
                await self._load_over(error.model, since, seconds, priority)
            except CancelledError:
                self.refused(error.model, Cancelled("the client disconnected or cancelled"))
                raise
            except CohortError as refusal:
                self.refused(error.model, refusal)
                raise
            try:
                lease = pick()
            except NotLoaded as still:
                error = still
            else:
                return lease, None if seconds is None else seconds - (monotonic() - since)

    async def _load_over(
        self, model: str, since: float, seconds: float | None, priority: int
    ) -> None:
        most = MAX_LOAD_SECONDS if seconds is None else min(seconds, MAX_LOAD_SECONDS)
        self.begin_reading(priority=priority)
        try:
            async with asyncio.timeout(since + most - monotonic()):
                await self._registry.load_over(model)
        except TimeoutError:
            if most == seconds:
                raise DeadlineExceeded(most) from None
            message = f"model {quoted(model)} is still loading after {most:g} s; retry later"
            raise NotReady(message) from None
        finally:
            self.end_reading()

    def begin_reading(
        self, model: str | None = None, version: str | None = None, priority: int = 0
    ) -> None:
        """Count a request while its body is read, if that takes long.

        Raises NotReady or Overloaded. It also raises Overloaded if the queue of the version in the
        path is full. Reading a large body for nothing costs more than many small requests.
        """
        self._check_open()
        self._limit.check(1, priority)
        if model is not None and model not in self._live:
            if self._served_from is not self._registry.catalog:
                self._forget()
            if (served := self._served.get((model, version))) is not None:
                served.engine.check_room(priority)
        self._limit.reading += 1

    def end_reading(self) -> None:
        """End the count of `begin_reading`: the body was read, or the client disconnected."""
        self._limit.reading -= 1

    def _check_open(self) -> None:
        if self._limit.closed:
            raise NotReady("the server is shutting down")

    def _find_coalescing_target(self, asked: Asked) -> Target | None:
        """Return the target of coalesced requests for `asked`; None if they are not coalesced."""
        model, version = asked if isinstance(asked, tuple) else (asked, None)
        if self._served_from is not self._registry.catalog:
            self._forget()
        name = self._unnamed_model if model is None else model
        if name is None:
            return None
        live = self._live.get(name) if version is None else None
        if live is None:
            served, limit = self._coalesced(name, version)
            return None if served is None else self._fixed(served, limit)
        if name not in self._registry.catalog:
            return None
        ready = self._registry.model(name).ready
        return RolloutTarget(live, ready, lambda number: self._coalesced(name, str(number)))

    @staticmethod
    def _fixed(served: ServedVersion, limit: int) -> Target:
        target: Target | None = served.target
        if target is None or target.fixed is None or target.fixed.limit != limit:
            target = served.target = Target(Chosen(served, "", limit, None))
        return target

    def _coalesced(self, name: str, version: str | None) -> tuple[ServedVersion | None, int]:
        """Return the version that answers coalesced requests, or None, and the rows of a run."""
        served = self._served.get((name, version))  # None before the first single request
        if served is None or not served.coalescible:
            return None, 1
        limit = served.engine.inline_rows
        return (served, limit) if limit > 1 else (None, 1)

    def _admit(self, count: int, priority: int) -> None:
        self._check_open()
        self._limit.check(count, priority)

    def _room(self, served: ServedVersion, priority: int) -> int:
        return min(self._limit.room_for(priority), served.engine.room_for(priority))

    def _lease_group(
        self, served: ServedVersion, variant: str, started: float, count: int, priority: int
    ) -> GroupLease:
        self._admit(count, priority)
        return GroupLease(served, self._limit, started, count, priority, variant)

    def _forget(self) -> None:
        """Forget the versions of an earlier catalog."""
        catalog = self._served_from = self._registry.catalog
        self._served.clear()
        self._unnamed_model = self._default_model
        if self._unnamed_model is None and len(catalog) == 1:
            (self._unnamed_model,) = catalog

    def _serve(self, name: str, version: str | None) -> ServedVersion:
        """Return the version that answers, and remember it until the catalog changes."""
        try:
            entry = self._registry.find(name, version)
        except NotReady:
            self._registry.demand(name)
            raise
        engine, number = entry.by_tensors(name), str(entry.number)
        served = ServedVersion(name, number, engine, self._metrics.version(name, number))
        self._served[name, version] = served
        return served

    def _choose(
        self,
        name: str,
        live: LiveRollout,
        context: RequestContext,
        parameters: Mapping[str, object],
    ) -> tuple[str, str, int | None]:
        """Return the variant, its version, and a hash of the sticky key or connection."""
        sticky = live.rollout.sticky
        key = None if sticky is None else context.key_of(sticky, parameters) or None
        caller = context.peer if key is None else key
        model = self._registry.model(name)
        chosen = live.choose(key, model.ready)
        if chosen.version not in model.ready:
            baseline = model.versions.get(chosen.version)
            self._registry.demand(name)
            raise NotReady(
                f"model {quoted(name)} has no ready version for its rollout's baseline: "
                + (why_not_ready([baseline]) if baseline else f"no version {chosen.version}"),
                retry_after=seconds_until_ready([baseline] if baseline else [], monotonic()),
            )
        return chosen.name, str(chosen.version), None if caller is None else hash(caller)

    def sticky_parameter(self, model: str) -> str:
        """Return the parameter that keeps a model's callers on a variant; "" if there is none."""
        live = self._live.get(model)
        sticky = None if live is None else live.rollout.sticky
        return "" if sticky is None else sticky.parameter

    def _find_labelled(self, name: str, label: str) -> str:
        self._registry.model(name)
        return str(self._rollouts.version_of(name, label))

    def refused(self, model: str | None, error: CohortError, times: int = 1) -> None:
        """Count requests that never got a lease. Requests for unknown models are not counted."""
        name = model if model is not None else self._unnamed_model
        if name is None or name not in self._registry.catalog:
            return
        self.observer.refused(name, error, times)

    def _no_model(self) -> NoReturn:
        names = self._registry.catalog
        if not names:
            raise NotReady("no model is loaded yet")
        raise InvalidInput(
            f"the request names no model{available(names)}; name one under 'model', in the "
            "path: /models/{model}/predict, or, for /invocations, in the query: ?model=NAME",
            "model",
        )
