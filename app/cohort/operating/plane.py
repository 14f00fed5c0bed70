"""The control plane: the interface for operators."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version as distribution_version
from itertools import zip_longest
from time import monotonic

from cohort.errors import MOST_LISTED, NotFound, NotReady, quoted, quoted_names
from cohort.metrics import Metrics, VersionCounts, negotiate
from cohort.operating.description import (
    Description,
    describe_failures,
    describe_held_back,
    describe_mixed,
)
from cohort.operating.drawings import Drawings
from cohort.operating.live import Heard, LiveView
from cohort.operating.merged import merge_health, merge_models
from cohort.operating.reading import NO_READY_VERSION, ModelReader, Readiness
from cohort.operating.shared_work import Shared, in_turns
from cohort.operating.siblings import Siblings
from cohort.registry import Registry, SeenRegistry, seconds_until_ready
from cohort.rollouts import Rollouts
from cohort.scheduling import Trouble
from cohort.session import DefaultChain
from cohort.workers.merging import METRICS, merge_metrics

LIVE = "live"
"""The question for what other workers have counted."""

MAX_SEEN = 1024
"""Views that are kept, one for each set of models that callers may see."""


VERSION = distribution_version("cohort")  # read once: it is in a file


class ControlPlane(ModelReader):
    """What operators may read and do, for all adapters.

    draining: Whether the process has begun to stop; never reset.

    registry: Holds the catalog of loaded versions.
    metrics: The metrics of the process.
    rollouts: The rollouts of all models.
    reconcile: Begins to load and unload until the registry matches the models folder.
    save: Writes the decisions about rollouts to the state folder.
    problems: Returns the problems of the operator's files, as messages.
    loading_reason: Returns the reason why the first models are not loaded yet.
    unready: Returns what else keeps the process from being ready; empty where nothing does.
    troubles: Returns what is wrong with the process itself; default: nothing.
    allow_empty: Whether the process may be ready while no model serves.
    default_chain: What models run on whose config names no providers.
    siblings: The other workers of this host; default: none.

    live: What all versions do, second by second.
    drawings: The graphs of models.
    """

    def __init__(
        self,
        registry: Registry,
        metrics: Metrics,
        rollouts: Rollouts,
        *,
        reconcile: Callable[[], Awaitable[None]],
        save: Callable[[], Awaitable[None]],
        problems: Callable[[], Sequence[object]],
        loading_reason: Callable[[], str],
        unready: Callable[[], str] = str,
        troubles: Callable[[], Sequence[Trouble]] = tuple,
        allow_empty: bool,
        default_chain: DefaultChain,
        siblings: Siblings | None = None,
    ) -> None:
        super().__init__(registry, metrics, rollouts)
        self._registry = registry
        self._reconcile = reconcile
        self._save = save
        self._problems = problems
        self._loading_reason = loading_reason
        self._unready = unready
        self.troubles = troubles
        self._allow_empty = allow_empty
        self._default_chain = default_chain
        self._started = monotonic()
        self._views: dict[frozenset[str], SeenModels] = {}
        self._metrics_texts = Shared(self._write_metrics)
        self._merged_texts = Shared(self._merge_metrics)
        self.live = LiveView(self._counts_of_all, self._queued)
        self.drawings = Drawings()
        self.siblings = siblings or Siblings()
        self.draining = False
        self.opening = ""

    def begin_draining(self) -> None:
        """Report not ready from now on; requests are still answered."""
        self.draining = True
        self.drawings.close()

    def seen_by(self, models: frozenset[str] | None) -> ModelReader:
        """What callers may read who may see `models`; None: all of them."""
        if models is None:
            return self
        view = self._views.get(models)
        if view is None:
            if len(self._views) >= MAX_SEEN:
                self._views.clear()
            view = self._views[models] = SeenModels(self, models)
        return view

    def readiness(self) -> Readiness:
        """Whether this process, and all other workers that connections are given to, are ready."""
        return self.siblings.readiness(self.own_readiness())

    def own_readiness(self) -> Readiness:
        """Ready means: the first load pass is over, a model serves, and none became unavailable.

        And the process does not drain, and nothing is wrong with a device, a thread or the loop.

        A version that failed does not matter while another version of its model is READY.
        """
        if self.draining:
            return Readiness(False, "draining")
        if troubles := self.troubles():
            return Readiness(False, "; ".join(map(str, troubles)))
        if not self._registry.settled:
            return Readiness(False, self._why_loading())
        if reason := self._unready():
            return Readiness(False, reason)
        if unavailable := self._registry.unavailable:
            return Readiness(False, f"{NO_READY_VERSION}: {', '.join(unavailable)}")
        if self._registry.serves_nothing and not self._allow_empty:
            return Readiness(False, _why_nothing_serves(self._registry.serving))
        return Readiness(not self.opening, self.opening)

    def liveness(self) -> Readiness:
        """Whether this process and all other workers are live."""
        return self.siblings.liveness(self.own_liveness())

    def own_liveness(self) -> Readiness:
        """Live means: nothing is wrong that only a restart mends. The reason names no model."""
        lasting = [trouble.text for trouble in self.troubles() if trouble.lasting]
        return Readiness(not lasting, "; ".join(lasting))

    def _why_loading(self) -> str:
        goes_on = self._registry.loading
        more = ", …" if len(goes_on) > MOST_LISTED else ""
        listed = f": {', '.join(goes_on[:MOST_LISTED])}{more}" if goes_on else ""
        return self._loading_reason() + listed

    def health(self) -> Description:
        """A summary for people and simple checks."""
        catalog = self._registry.catalog
        readiness = self.readiness()
        problems = [
            *map(str, self._problems()),
            *describe_failures(catalog),
            *describe_mixed(catalog),
        ]
        status = "healthy" if readiness.ready and not problems else "degraded"
        if not readiness.ready:
            status = "draining" if self.draining else "unready"
        return {
            "status": status,
            "ready": readiness.ready,
            "reason": readiness.reason,
            "model_loaded": any(model.default is not None for model in catalog.values()),
            "models": self.states(),
            "problems": problems,
            "held_back": describe_held_back(catalog),
            "rolled_back": self._rollouts.rolled_back(catalog),
            "default_providers": {
                "wanted": [link.name for link in self._default_chain.links],
                "reason": self._default_chain.reason,
            },
            "uptime_seconds": round(monotonic() - self._started, 3),
            "version": VERSION,
        }

    async def health_of_all(self, view: ModelReader) -> Description:
        """What `view` says of health, with what is different in other workers."""
        own = view.health()
        if not self.siblings.several:
            return own
        found = await self.siblings.ask("health")
        said = [one.said for one in found.answers if not one.error]
        return merge_health(own, said, found.silent, whole=view is self)

    async def models_of_all(self, own: Description) -> Description:
        """The models in `own`, with the states that they have in other workers."""
        if not self.siblings.several:
            return own
        found = await self.siblings.ask("health")
        return merge_models(own, [one.said for one in found.answers if not one.error])

    async def model_of_all(self, view: ModelReader, name: str) -> Description:
        """What `view` says of one model, with states and rollout as all workers have them.

        Raises ModelNotFound.
        """
        own = view.model(name)
        if not self.siblings.several:
            return own
        merged = await self.models_of_all({"models": [own]})
        described: Description = merged["models"][0]
        if "rollout" in own:
            described["rollout"] = (await self.rollouts_of_all()).get(name, own["rollout"])
        return described

    async def load(self, name: str) -> None:
        """Load a model that was unloaded, retry versions that failed, and wait until that is done.

        Raises ModelNotFound, or NotReady with the reason where a version could not be loaded.
        """
        self._registry.reload_model(name)
        await self._reconcile()
        await self._registry.loaded(name)
        for entry in self._registry.model(name).versions.values():
            if entry.reason:
                wait = seconds_until_ready([entry], monotonic())
                raise NotReady(f"version {entry.number}: {entry.reason}", retry_after=wait)

    async def load_in_all(self, name: str) -> None:
        """As `load`, in all workers, also where it fails in this one."""
        try:
            await self.load(name)
        except NotReady:
            await self.siblings.have_done("load", {"model": name})
            raise
        await self.siblings.have_done("load", {"model": name})

    def unload(self, name: str) -> None:
        """Unload a model until `load` or a restart. Requests in flight finish.

        Raises ModelNotFound.
        """
        self._registry.unload_model(name)

    async def unload_in_all(self, name: str) -> None:
        """As `unload`, in all workers, and in those that replace them."""
        self.unload(name)
        await self.siblings.have_done("unload", {"model": name})

    # -- rollouts

    def rollouts(self) -> Description:
        """Every rollout by model."""
        return {name: self._rollouts.describe(name) for name in self._rollouts.live}

    async def rollouts_of_all(self) -> Description:
        """Every rollout by model, with the evidence of all workers."""
        if not self.siblings.judges:
            found = await self.siblings.ask("rollouts", to="judge")
            for answer in found.answers:
                if not answer.error:
                    return dict(answer.said["rollouts"])
        return self.rollouts()

    def rollout(self, name: str) -> Description:
        """A model's rollout. Raises NotFound."""
        description = self._rollouts.describe(name)
        if description is None:
            raise NotFound(f"model {quoted(name)} has no rollout")
        return description

    async def roll_back(self, name: str, variant: str) -> Description:
        """Route a variant's traffic to the baseline. Raises NotFound or InvalidInput."""
        decision = self._rollouts.roll_back(name, variant)
        await self._save()
        await self.siblings.have_done("decided", {"model": name, "decision": asdict(decision)})
        return self.rollout(name)

    async def clear(self, name: str, variant: str | None = None) -> Description:
        """Clear the decisions about a variant, or about all variants. Raises NotFound."""
        self._rollouts.clear(name, variant)
        await self._save()
        await self.siblings.have_done("cleared", {"model": name, "variant": variant})
        return self.rollout(name)

    def shadow_examples(self, name: str) -> list[Description]:
        """The most recent requests on which the shadow disagreed. Raises NotFound."""
        return self._rollouts.examples(name)

    async def examples_of_all(self, name: str) -> list[Description]:
        """As `shadow_examples`, of all workers in turn."""
        found = await self.siblings.ask("examples", {"model": name})
        others = [list(one.said["examples"]) for one in found.answers if not one.error]
        parts = zip_longest(self.shadow_examples(name), *others)
        return [one for part in parts for one in part if one is not None]

    # -- metrics

    async def metrics_text(self, accept: str) -> tuple[Sequence[bytes], str]:
        """The metrics in the format that an Accept header prefers, in blocks; its content type.

        Who asks while they are written gets the same text. Those of several workers are added up,
        and always in Prometheus's text format.
        """
        if self.siblings.several:
            return await self._merged_texts.get(None), negotiate("")
        return await self._own_metrics_text(accept)

    async def own_metrics_text(self) -> bytes:
        """The metrics of this process alone, in Prometheus's text format."""
        blocks, _ = await self._own_metrics_text("")
        return b"".join(blocks)

    async def _own_metrics_text(self, accept: str) -> tuple[Sequence[bytes], str]:
        content_type = negotiate(accept)
        openmetrics = content_type.startswith("application/openmetrics-text")
        return await self._metrics_texts.get(openmetrics, openmetrics=openmetrics), content_type

    async def _write_metrics(self, *, openmetrics: bool) -> tuple[bytes, ...]:
        process = await asyncio.to_thread(self._metrics.process_families)
        models = list(self._registry.catalog.values())
        return await in_turns(self._metrics.write(models, process, openmetrics=openmetrics))

    async def _merge_metrics(self) -> tuple[bytes, ...]:
        found = await self.siblings.ask(METRICS, to="all")
        texts = [one.body.decode() for one in found.answers if not one.error]
        ended, *others = [one.decode() for one in found.more]
        return await in_turns(merge_metrics([*texts, *others], ended))

    # -- the live view

    async def own_counts(self) -> list[tuple[str, str, Description]]:
        """What this process has counted of each version: model, version and counts."""
        counts = await in_turns(self._metrics.counts())
        return [(model, version, one.plain()) for (model, version), one in counts.items()]

    async def _counts_of_all(self) -> Heard:
        found = await self.siblings.ask(LIVE)
        counts: dict[int, Mapping[tuple[str, ...], VersionCounts] | None] = {
            one.pid: None
            if one.error
            else {
                (model, version): VersionCounts.read(said)
                for model, version, said in one.said["counts"]
            }
            for one in found.answers
        }
        counts |= dict.fromkeys(found.silent)
        counts[0] = await in_turns(self._metrics.counts())  # of this one
        return counts

    def _queued(self) -> int:
        return sum(
            entry.engine.waiting
            for model in self._registry.catalog.values()
            for entry in model.versions.values()
            if entry.engine is not None
        )


def _why_nothing_serves(wanted: Collection[str]) -> str:
    if not wanted:
        return "there is no model to serve"
    return f"{NO_READY_VERSION}: {quoted_names(wanted)}"


class SeenModels(ModelReader):
    """What callers may read who may see some of the models: nothing tells them of any other.

    whole: The plane that they see a part of.
    models: The names of the models they may see.
    """

    def __init__(self, whole: ControlPlane, models: frozenset[str]) -> None:
        super().__init__(SeenRegistry(whole._registry, models), whole._metrics, whole._rollouts)
        self._whole = whole

    def readiness(self) -> Readiness:
        """As the whole plane's; its reason names only models that may be seen."""
        whole = self._whole.readiness()
        if whole.ready or self._whole.draining:
            return whole
        if troubles := self._whole.troubles():
            return Readiness(False, "; ".join([trouble.text for trouble in troubles]))
        if not self._seen.settled:
            return Readiness(False, "loading models")
        if unavailable := self._seen.unavailable:
            return Readiness(False, f"{NO_READY_VERSION}: {', '.join(unavailable)}")
        return Readiness(False, "not everything that is configured can be served")

    def health(self) -> Description:
        """As the whole plane's, with the models that may be seen and without problems of files."""
        return {
            **self._whole.health(),
            "reason": self.readiness().reason,
            "models": self.states(),
            "problems": [],
            "held_back": describe_held_back(self._seen.catalog),
            "rolled_back": self._rollouts.rolled_back(self._seen.catalog),
        }
