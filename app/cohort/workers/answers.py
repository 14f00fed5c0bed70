"""The replies of a worker to questions of other workers on its host."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from cohort.errors import NotFound
from cohort.operating import ProcessPlane
from cohort.registry import Registry
from cohort.rollouts import Rollouts
from cohort.rollouts.decision_store import Decision
from cohort.rollouts.watcher import RolloutWatcher
from cohort.workers.given_evidence import give_evidence
from cohort.workers.link import QuestionHandler
from cohort.workers.merged_metrics import METRICS

Said = tuple[Mapping[str, Any], bytes]

DONE: Said = ({}, b"")


def answers_of(
    place: int,
    plane: ProcessPlane,
    registry: Registry,
    rollouts: Rollouts,
    watcher: RolloutWatcher,
) -> dict[str, QuestionHandler]:
    """Return the handlers of questions, by question.

    place: The place of this worker among all.
    plane, registry, rollouts: The sources of the answers.
    watcher: Exchanges decisions with the state folder.
    """

    async def metrics(_: Mapping[str, Any]) -> Said:
        blocks, _content_type = await plane.metrics_text("")
        return {}, b"".join(blocks)

    async def health(_: Mapping[str, Any]) -> Said:
        readiness = plane.readiness()
        states: dict[str, dict[str, tuple[str, str]]] = {}
        for one in plane.limited_to(None).index():
            states.setdefault(one["name"], {})[one["version"]] = one["state"], one["reason"]
        return {
            "place": place,
            "ready": readiness.ready,
            "reason": readiness.reason,
            "settled": registry.settled,
            "problems": plane.summary.problems(),
            "states": states,
        }, b""

    async def load(said: Mapping[str, Any]) -> Said:
        await plane.load(said["model"])
        return DONE

    async def unload(said: Mapping[str, Any]) -> Said:
        registry.unload_model(said["model"], unknown=True)
        return DONE

    async def decided(said: Mapping[str, Any]) -> Said:
        rollouts.adopt(said["model"], Decision(**said["decision"]))
        await watcher.sync()
        return DONE

    async def cleared(said: Mapping[str, Any]) -> Said:
        with suppress(NotFound):  # this worker has not read the file yet
            rollouts.clear(said["model"], said["variant"])
        await watcher.sync()
        return DONE

    async def described(_: Mapping[str, Any]) -> Said:
        return {"rollouts": await plane.rollouts()}, b""

    async def examples(said: Mapping[str, Any]) -> Said:
        return {"examples": await plane.shadow_examples(said["model"])}, b""

    async def evidence(said: Mapping[str, Any]) -> Said:
        for model, decisions in said["decisions"].items():
            for decision in decisions:
                rollouts.adopt(model, Decision(**decision))
        return {}, json.dumps(give_evidence(rollouts.live)).encode()

    async def live(_: Mapping[str, Any]) -> Said:
        counts = await plane.counts()
        return {"counts": [(*key, one.plain()) for key, one in counts.items()]}, b""

    return {
        METRICS: metrics,
        "live": live,
        "health": health,
        "load": load,
        "unload": unload,
        "decided": decided,
        "cleared": cleared,
        "rollouts": described,
        "examples": examples,
        "evidence": evidence,
    }
