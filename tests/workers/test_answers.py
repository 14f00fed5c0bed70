"""A worker's answers to the questions of another one's control plane."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cohort.metrics import Metrics
from cohort.operating import live
from cohort.registry import Registry, State
from cohort.rollouts import Rollouts, RolloutWatcher, parse_rollouts
from cohort.workers.answers import answers_of
from cohort.workers.host_plane import HostPlane
from cohort.workers.judging import Judging
from cohort.workers.link import Link, WorkerAnswer, WorkerAnswers
from tests.engines import ControlledEngine, make_entry, make_registry
from tests.fakes import make_metrics
from tests.planes import health_of, make_control_plane, make_rollouts
from tests.workers.fake_link import siblings_of

CONFIG = "m: {variants: {stable: {version: 1, weight: 9}, new: {version: 2, weight: 1}}}"


class Worker(Link):
    """A worker, and the link by which another one asks it, as JSON."""

    def __init__(self, place: int, folder: Path) -> None:
        self.registry: Registry = make_registry(
            {"m": [make_entry(number, ControlledEngine()) for number in (1, 2)]}
        )
        self.metrics: Metrics = make_metrics()
        self.rollouts: Rollouts = make_rollouts(self.registry)
        self.rollouts.apply(parse_rollouts(CONFIG, "rollouts.yaml"))
        self.plane = make_control_plane(self.registry, self.metrics, self.rollouts)
        self.watcher = RolloutWatcher(folder / "rollouts.yaml", folder / str(place), self.rollouts)
        self._answers = answers_of(place, self.plane, self.registry, self.rollouts, self.watcher)

    async def ask(
        self, what: str, said: Mapping[str, Any], *, to: str, seconds: float
    ) -> WorkerAnswers:
        told, body = await self._answers[what](json.loads(json.dumps(said)))
        answer = WorkerAnswer(2, {**json.loads(json.dumps(told)), "pid": 2}, body)
        return WorkerAnswers((answer,), more=(b"",))

    def rolled_back(self) -> list[str]:
        """Return the variants that are."""
        variants = self.rollouts.live["m"].rollout.variants
        return [name for name, variant in variants.items() if variant.rolled_back]


@pytest.fixture
def workers(tmp_path: Path) -> tuple[Worker, Worker]:
    """One that is asked by callers, and another one."""
    return Worker(1, tmp_path), Worker(2, tmp_path)


@pytest.fixture
def plane(workers: tuple[Worker, Worker]) -> HostPlane:
    """The control plane of the first."""
    one, other = workers
    return HostPlane(one.plane, siblings_of(other), one.rollouts)


async def test_what_is_read_is_that_of_both(
    workers: tuple[Worker, Worker], plane: HostPlane
) -> None:
    """States, problems and metrics of both are returned."""
    _, other = workers
    entries = [make_entry(1, ControlledEngine()), make_entry(2, reason="no memory")]
    other.registry.catalog = make_registry({"m": entries}).catalog
    health = await health_of(plane)
    assert health["models"] == {"m": {"1": "READY", "2": "UNAVAILABLE"}}
    assert health["problems"] == ["worker 2: m/2: failed: no memory"]
    model = await plane.model(plane.limited_to(None), "m")
    assert model["versions"][1]["reason"] == "worker 2: no memory"
    other.metrics.version("m", "1").request("", "OK", 0.1)
    blocks, _ = await plane.metrics_text("")
    assert b'model_inference_total{code="OK",model="m",variant="",version="1"} 1.0' in b"".join(
        blocks
    )


async def test_the_live_view_has_the_requests_of_both(
    workers: tuple[Worker, Worker], plane: HostPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The view starts with the first viewer."""
    monkeypatch.setattr(live, "SAMPLE_SECONDS", 0.01)
    watched = plane.live.watch(bool)
    assert await anext(watched) == []
    for worker in workers:
        worker.metrics.version("m", "1").request("", "OK", 0.1)
    (sample,) = await anext(watched)
    await watched.aclose()
    (version,) = json.loads(sample.limited_to(None))["versions"]
    assert (version["model"], version["version"], version["codes"]) == ("m", "1", {"OK": 2})


async def test_what_an_operator_does_is_done_by_both(
    workers: tuple[Worker, Worker], plane: HostPlane
) -> None:
    """Both have done it when the answer comes."""
    await plane.roll_back("m", "new")
    assert [worker.rolled_back() for worker in workers] == [["new"], ["new"]]
    await plane.clear("m", "new")
    assert [worker.rolled_back() for worker in workers] == [[], []]
    await plane.unload("m")
    states = [worker.registry.version("m", "1").state for worker in workers]
    assert states == [State.UNAVAILABLE, State.UNAVAILABLE]


async def test_who_judges_tells_the_other_what_was_decided(
    workers: tuple[Worker, Worker],
) -> None:
    """It does so as it collects the evidence, even if the state folder is not available."""
    one, other = workers
    one.rollouts.roll_back("m", "new")
    judging = Judging(siblings_of(other, judge=1), one.rollouts, one.watcher)
    await judging.step()
    assert other.rolled_back() == ["new"]


async def test_who_does_not_judge_asks_nothing(workers: tuple[Worker, Worker]) -> None:
    """A worker that does not judge asks for no evidence, and only follows decisions."""
    one, other = workers
    one.rollouts.roll_back("m", "new")
    judging = Judging(siblings_of(other, judge=2), one.rollouts, one.watcher)
    await judging.step()
    assert other.rolled_back() == []
