"""The control plane of a worker, which answers for all of its host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from cohort.errors import NotReady
from cohort.operating import Readiness
from cohort.registry import Registry
from cohort.rollouts import Rollouts, parse_rollouts
from cohort.workers.host_plane import HostPlane
from cohort.workers.link import WorkerAnswers
from tests.engines import ControlledEngine, make_entry, make_registry
from tests.fakes import make_metrics
from tests.planes import health_of, make_control_plane, make_rollouts
from tests.workers.fake_link import FakeLink, answer, siblings_of, worker

HEALTH: dict[str, Any] = {
    "place": 2,
    "ready": True,
    "reason": "",
    "settled": True,
    "problems": [],
    "states": {},
}

ROLLOUT = "m: {variants: {stable: {version: 1, weight: 9}, new: {version: 2, weight: 1}}}"

DONE = WorkerAnswers((answer(2),))


def serving(**models: int) -> Registry:
    """Return a registry of models, each with a number of versions."""
    return make_registry(
        {
            name: [make_entry(number + 1, ControlledEngine()) for number in range(count)]
            for name, count in models.items()
        }
    )


def host(
    link: FakeLink,
    registry: Registry | None = None,
    *others: Mapping[str, Any],
    judge: int = 1,
) -> HostPlane:
    """The plane of a worker that judges unless `judge` does, with a rollout of the model m."""
    registry = registry or serving(m=2)
    rollouts = make_rollouts(registry)
    rollouts.apply(parse_rollouts(ROLLOUT, "rollouts.yaml"))
    own = make_control_plane(registry, make_metrics(), rollouts)
    siblings = siblings_of(link, worker(1), *others, judge=judge)
    return HostPlane(own, siblings, rollouts)


def test_who_may_see_some_models_is_not_told_why_another_worker_is_not_ready() -> None:
    """Its reason may name others. Operators read it."""
    plane = host(FakeLink(), None, worker(2, ready=False, reason="secret: broken"))
    assert plane.readiness() == Readiness(False, "worker 2: secret: broken")
    assert plane.readiness(plane.limited_to(None)) == plane.readiness()
    seen = plane.readiness(plane.limited_to(frozenset({"m"})))
    assert seen == Readiness(False, "some configured models cannot be served")


def test_nor_is_who_asks_a_worker_that_retires() -> None:
    """It drains, and speaks for the others to operators only."""
    registry, others = serving(m=1), worker(2, ready=False, reason="secret: broken")
    siblings = siblings_of(FakeLink(), worker(1, retiring=True), others)
    siblings.retiring = True
    own = make_control_plane(registry, make_metrics())
    plane = HostPlane(own, siblings, make_rollouts(registry))
    plane.begin_draining()
    assert plane.draining
    assert plane.readiness() == Readiness(False, "worker 2: secret: broken")
    assert plane.readiness(plane.limited_to(frozenset({"m"}))) == Readiness(False, "draining")


async def test_health_is_that_of_all_workers() -> None:
    """It has their readiness, the states and, for callers who may see all, their problems."""
    said = {**HEALTH, "problems": ["disk"], "states": {"m": {"1": ["LOADING", ""]}}}
    answers = WorkerAnswers((answer(2, **said), answer(3, error="busy")), silent=(4,))
    plane = host(FakeLink(health=answers), None, worker(2, ready=False, reason="loading"))
    health = await health_of(plane)
    assert (health["status"], health["reason"]) == ("unready", "worker 2: loading")
    assert health["models"] == {"m": {"1": "LOADING", "2": "READY"}}
    assert health["problems"] == ["worker 2: disk", "process 4 does not answer"]
    assert [one["pid"] for one in health["workers"]] == [2]
    seen = await health_of(plane, frozenset({"m"}))
    assert (seen["models"], seen["problems"]) == (health["models"], [])
    assert "workers" not in seen


async def test_a_model_is_as_far_as_in_all_workers() -> None:
    """This holds in the list and for one model; its rollout is the judging worker's."""
    said = {**HEALTH, "states": {"m": {"1": ["UNAVAILABLE", "no memory"]}}}
    link = FakeLink(
        health=WorkerAnswers((answer(2, **said),)),
        rollouts=WorkerAnswers((answer(2, rollouts={"m": {"told": "by the judge"}}),)),
    )
    plane = host(link, None, worker(2), judge=2)
    view = plane.limited_to(None)
    for described in ((await plane.models(view))["models"][0], await plane.model(view, "m")):
        first = described["versions"][0]
        assert (first["state"], first["reason"]) == ("UNAVAILABLE", "worker 2: no memory")
    assert (await plane.model(view, "m"))["rollout"] == {"told": "by the judge"}
    assert await plane.rollouts() == {"m": {"told": "by the judge"}}
    assert ("rollouts", {}, "judge") in link.asked


async def test_rollouts_are_this_workers_where_it_judges_or_the_judge_is_silent() -> None:
    """It is asked nothing, or has failed."""
    link = FakeLink()
    assert list(await host(link).rollouts()) == ["m"]
    assert link.asked == []
    failed = FakeLink(rollouts=WorkerAnswers((answer(2, error="busy"),)))
    assert list(await host(failed, judge=2).rollouts()) == ["m"]


async def test_operators_have_all_workers_do_the_same() -> None:
    """This one is first; the others get the local decision."""
    link = FakeLink(unload=DONE, load=DONE, decided=DONE, cleared=DONE)
    plane = host(link)
    described = await plane.roll_back("m", "new")
    assert [one["rolled_back"] for one in described["variants"]] == [False, True]
    await plane.clear("m", "new")
    await plane.unload("m")
    assert [(what, said.get("model"), to) for what, said, to in link.asked] == [
        ("decided", "m", "others"),
        ("cleared", "m", "others"),
        ("unload", "m", "others"),
    ]
    decision = link.asked[0][1]["decision"]
    assert (decision["version"], decision["reason"]) == (2, "operator")
    assert link.asked[1][1]["variant"] == "new"


async def test_a_model_is_loaded_in_all_workers_also_where_one_fails() -> None:
    """The reason of this one comes first, then that of another, then who has not finished."""
    link = FakeLink(load=DONE)
    broken = make_registry({"m": [make_entry(1, reason="broken")]})
    with pytest.raises(NotReady, match="version 1: broken"):
        await host(link, broken).load("m")
    assert link.asked == [("load", {"model": "m"}, "others")]
    link.answers["load"] = WorkerAnswers((answer(2, error="no memory"),))
    with pytest.raises(NotReady, match="worker process 2: no memory"):
        await host(link).load("m")
    link.answers["load"] = WorkerAnswers((), silent=(3,))
    with pytest.raises(NotReady, match="has not finished yet"):
        await host(link).load("m")


async def test_the_last_disagreements_are_those_of_all_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They alternate, so that no worker hides the others'."""
    others = WorkerAnswers((answer(2, examples=[{"id": "b1"}]), answer(3, error="no shadow")))
    link = FakeLink(examples=others)
    monkeypatch.setattr(Rollouts, "examples", lambda *_: [{"id": "a1"}, {"id": "a2"}])
    found = await host(link).shadow_examples("m")
    assert [one["id"] for one in found] == ["a1", "b1", "a2"]
    assert link.asked == [("examples", {"model": "m"}, "others")]


async def test_metrics_of_all_workers_are_one_text() -> None:
    """They are added up, including those of ended workers and of the parent."""
    text = b"# HELP asked_total Asked.\n# TYPE asked_total counter\nasked_total %d\n"
    link = FakeLink(
        metrics=WorkerAnswers(
            (answer(1, text % 1), answer(2, text % 2), answer(3, error="busy")),
            more=(text % 4, text % 8),
        )
    )
    blocks, content_type = await host(link).metrics_text("application/openmetrics-text")
    assert content_type.startswith("text/plain")
    assert b"asked_total 15.0\n" in b"".join(blocks)
    assert link.asked == [("metrics", {}, "all")]
