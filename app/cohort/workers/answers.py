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

Reply = tuple[Mapping[str, Any], bytes]

DONE: Reply = ({}, b"")


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

    async def metrics(_: Mapping[str, Any]) -> Reply:
        blocks, _content_type = await plane.metrics_text("")
        return {}, b"".join(blocks)

    async def health(_: Mapping[str, Any]) -> Reply:
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

    async def load(question: Mapping[str, Any]) -> Reply:
        await plane.load(question["model"])
        return DONE

    async def unload(question: Mapping[str, Any]) -> Reply:
        registry.unload_model(question["model"], unknown=True)
        return DONE

    async def decided(question: Mapping[str, Any]) -> Reply:
        rollouts.adopt(question["model"], Decision(**question["decision"]))
        await watcher.sync()
        return DONE

    async def cleared(question: Mapping[str, Any]) -> Reply:
        with suppress(NotFound):  # this worker has not read the file yet
            rollouts.clear(question["model"], question["variant"])
        await watcher.sync()
        return DONE

    async def described(_: Mapping[str, Any]) -> Reply:
        return {"rollouts": await plane.rollouts()}, b""

    async def examples(question: Mapping[str, Any]) -> Reply:
        return {"examples": await plane.shadow_examples(question["model"])}, b""

    async def evidence(question: Mapping[str, Any]) -> Reply:
        for model, decisions in question["decisions"].items():
            for decision in decisions:
                rollouts.adopt(model, Decision(**decision))
        return {}, json.dumps(give_evidence(rollouts.live)).encode()

    async def live(_: Mapping[str, Any]) -> Reply:
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
