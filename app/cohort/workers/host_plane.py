"""The control plane of a worker: answers for all workers of its host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import zip_longest

from cohort.errors import ModelNotFound, NotReady
from cohort.metrics import negotiate
from cohort.operating import (
    ControlPlane,
    Description,
    LiveView,
    ModelReader,
    ProcessPlane,
    Readiness,
    Shared,
    in_turns,
)
from cohort.operating.readiness import NOT_ALL_SERVED
from cohort.rollouts import Rollouts
from cohort.workers.host_counts import HostCounts
from cohort.workers.merged_health import HealthReport, merge_health, merge_models
from cohort.workers.merged_metrics import METRICS, merge_metrics
from cohort.workers.siblings import Siblings


class HostPlane(ControlPlane):
    """Reads and actions of operators for a host: from this worker and the others' answers.

    own: The plane of this worker.
    siblings: The other workers.
    rollouts: The rollouts of this worker.
    """

    def __init__(self, own: ProcessPlane, siblings: Siblings, rollouts: Rollouts) -> None:
        self._own = own
        self._siblings = siblings
        self._rollouts = rollouts
        self._texts = Shared(self._merge_metrics)
        self.live = LiveView(HostCounts(own.counts, siblings).since, own.queued)
        self.drawings = own.drawings

    @property
    def draining(self) -> bool:
        return self._own.draining

    def begin_draining(self) -> None:
        self._own.begin_draining()

    def limited_to(self, models: frozenset[str] | None) -> ModelReader:
        return self._own.limited_to(models)

    # -- health

    def readiness(self, view: ModelReader | None = None) -> Readiness:
        """Return whether all workers that receive connections are ready."""
        whole = self._siblings.readiness(self._own.readiness())
        if whole.ready or view is None or view.sees_all:
            return whole
        own = self._own.readiness(view)
        return Readiness(False, NOT_ALL_SERVED) if own.ready else own

    def liveness(self) -> Readiness:
        return self._siblings.liveness(self._own.liveness())

    async def health(self, view: ModelReader) -> Description:
        own = self._own.summary.describe(view, self.readiness(view))
        found = await self._siblings.ask("health")
        content = [one.content for one in found.good]
        return merge_health(own, content, found.silent, whole=view.sees_all)

    # -- models

    async def models(self, view: ModelReader) -> Description:
        own = await self._own.models(view)
        return merge_models(own, await self._health_of_others())

    async def model(self, view: ModelReader, name: str) -> Description:
        own = await self._own.model(view, name)
        merged = merge_models({"models": [own]}, await self._health_of_others())
        described: Description = merged["models"][0]
        if "rollout" in own:
            described["rollout"] = (await self.rollouts()).get(name, own["rollout"])
        return described

    async def _health_of_others(self) -> list[HealthReport]:
        return [one.content for one in (await self._siblings.ask("health")).good]

    async def load(self, name: str) -> None:
        """Load it in all workers, even if it fails in this one."""
        try:
            await self._own.load(name)
        except (ModelNotFound, NotReady):
            await self._siblings.have_done("load", {"model": name})
            raise
        await self._siblings.have_done("load", {"model": name})

    async def unload(self, name: str) -> None:
        """Unload it in all workers, and in their replacements."""
        await self._own.unload(name)
        await self._siblings.have_done("unload", {"model": name})

    # -- rollouts

    async def rollouts(self) -> Description:
        """Return every rollout by model, with the evidence of all workers."""
        if not self._siblings.judges:
            found = await self._siblings.ask("rollouts", to="judge")
            for answer in found.good:
                return dict(answer.content["rollouts"])
        return await self._own.rollouts()

    async def roll_back(self, name: str, variant: str) -> Description:
        decision = self._rollouts.roll_back(name, variant)
        await self._own.roll_back(name, variant)  # finds the decision in force, and saves it
        content = {"model": name, "decision": asdict(decision)}
        await self._siblings.have_done("decided", content)
        return self._own.rollout(name)

    async def clear(self, name: str, variant: str | None = None) -> Description:
        await self._own.clear(name, variant)
        await self._siblings.have_done("cleared", {"model": name, "variant": variant})
        return self._own.rollout(name)

    async def shadow_examples(self, name: str) -> list[Description]:
        """Return the examples of all workers, interleaved."""
        found = await self._siblings.ask("examples", {"model": name})
        others = [list(one.content["examples"]) for one in found.good]
        parts = zip_longest(await self._own.shadow_examples(name), *others)
        return [one for part in parts for one in part if one is not None]

    # -- metrics

    async def metrics_text(self, accept: str) -> tuple[Sequence[bytes], str]:
        """Return the sum of all workers' metrics, always in Prometheus's text format."""
        return await self._texts.get(None), negotiate("")

    async def _merge_metrics(self) -> tuple[bytes, ...]:
        found = await self._siblings.ask(METRICS, to="all")
        texts = [one.body.decode() for one in found.good]
        ended, *others = [one.decode() for one in found.more]
        return await in_turns(merge_metrics([*texts, *others], ended))
