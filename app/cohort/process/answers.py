"""What a worker answers when the others of its host ask it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from cohort.errors import NotFound
from cohort.operating.plane import LIVE
from cohort.process.service import Service
from cohort.rollouts.decision_store import Decision
from cohort.rollouts.given_evidence import give_evidence
from cohort.workers.link import QuestionHandler
from cohort.workers.merging import METRICS

Said = tuple[Mapping[str, Any], bytes]

DONE: Said = ({}, b"")


def answers_of(service: Service) -> dict[str, QuestionHandler]:
    """The answers, by what is asked."""
    plane, rollouts, watcher = service.control_plane, service.core.rollouts, service.files.rollouts

    async def metrics(_: Mapping[str, Any]) -> Said:
        return {}, await plane.own_metrics_text()

    async def health(_: Mapping[str, Any]) -> Said:
        readiness = plane.own_readiness()
        states: dict[str, dict[str, tuple[str, str]]] = {}
        for one in plane.index():
            states.setdefault(one["name"], {})[one["version"]] = one["state"], one["reason"]
        return {
            "place": service.siblings.place,
            "ready": readiness.ready,
            "reason": readiness.reason,
            "settled": service.core.registry.settled,
            "problems": plane.health()["problems"],
            "states": states,
        }, b""

    async def load(said: Mapping[str, Any]) -> Said:
        await plane.load(said["model"])
        return DONE

    async def unload(said: Mapping[str, Any]) -> Said:
        service.core.registry.unload_model(said["model"], unknown=True)
        return DONE

    async def decided(said: Mapping[str, Any]) -> Said:
        rollouts.adopt(said["model"], Decision(**said["decision"]))
        await watcher.sync()
        return DONE

    async def cleared(said: Mapping[str, Any]) -> Said:
        with suppress(NotFound):  # this one has not read the file yet
            rollouts.clear(said["model"], said["variant"])
        await watcher.sync()
        return DONE

    async def described(_: Mapping[str, Any]) -> Said:
        return {"rollouts": plane.rollouts()}, b""

    async def examples(said: Mapping[str, Any]) -> Said:
        return {"examples": rollouts.examples(said["model"])}, b""

    async def evidence(said: Mapping[str, Any]) -> Said:
        for model, decisions in said["decisions"].items():
            for decision in decisions:
                rollouts.adopt(model, Decision(**decision))
        return {}, json.dumps(give_evidence(rollouts.live)).encode()

    async def live(_: Mapping[str, Any]) -> Said:
        return {"counts": await plane.own_counts()}, b""

    return {
        METRICS: metrics,
        LIVE: live,
        "health": health,
        "load": load,
        "unload": unload,
        "decided": decided,
        "cleared": cleared,
        "rollouts": described,
        "examples": examples,
        "evidence": evidence,
    }
