"""Live rollouts, on real sessions, without a server."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from cohort.errors import CohortError, InvalidInput, NotFound, NotReady
from cohort.metrics import RolloutGauges
from cohort.onnx_engine.batched_session import BatchedSession
from cohort.rollouts import (
    Compared,
    Decision,
    Dropped,
    Recorded,
    Restored,
    RolledBack,
    Rollout,
    Rollouts,
    parse_rollouts,
)
from cohort.rollouts.watcher import RolloutWatcher
from cohort.serving import RequestContext
from tests import onnx_models
from tests.fakes import make_metrics
from tests.planes import infer, make_control_plane, make_data_plane
from tests.registry.on_disk import RegistryOnDisk
from tests.rollouts.engines import Events
from tests.waiting import PATIENCE

GUARD = "guard: {max_error_rate_increase: 0.01, min_requests: 50}"


class Deployment:
    """A model with rollouts and both planes: `gather`, which fails on indices it does not have."""

    def __init__(self, folder: Path) -> None:
        self.disk = RegistryOnDisk(folder)
        self.events = Events()
        self.rollouts = Rollouts(
            catalog=lambda: self.disk.registry.catalog,
            observe=self.events.observe,
        )
        self.metrics = make_metrics()
        self.plane = make_data_plane(self.disk.registry, self.metrics, self.rollouts)
        self.control = make_control_plane(self.disk.registry, self.metrics, self.rollouts)

    def put(self, version: int, model: onnx.ModelProto) -> None:
        onnx_models.save(model, self.disk.models / "m" / str(version) / "model.onnx")
        (self.disk.models / "m" / "config.yaml").write_text("versions: all\nproviders: [cpu]\n")

    def apply(self, text: str) -> None:
        self.rollouts.apply(parse_rollouts(f"m: {{{text}}}" if text else "", "rollouts.yaml"))

    @property
    def rollout(self) -> Rollout:
        return self.rollouts.live["m"].rollout

    def is_out(self, variant: str) -> bool:
        return self.rollout.variants[variant].rolled_back

    async def ask(
        self, index: int = 0, *, times: int = 1, key: str | None = None, **pick: Any
    ) -> Counter[tuple[str, str]]:
        """Send `times` requests at once: by variant and code, what came back."""

        async def once() -> tuple[str, str]:
            sent = {} if key is None else {"user": key, "x-user": key}
            context = RequestContext(key, sent)
            lease = self.plane.pick("m", context=context, parameters=sent, **pick)
            name = lease.inputs[0].name
            code = "OK"
            try:
                with lease:
                    await infer(lease, {name: np.array([index], np.int64)})
            except CohortError as error:
                code = error.code
            return lease.variant, code

        return Counter(await asyncio.gather(*(once() for _ in range(times))))

    async def settle(self) -> None:
        """Wait until no copy of a request runs or waits to run."""
        async with asyncio.timeout(PATIENCE):
            for version in self.disk.registry.catalog["m"].versions.values():
                assert version.engine is not None
                idle = asyncio.Event()
                version.engine.leases.when_idle(idle.set)
                await idle.wait()

    def described(self, name: str) -> dict[str, Any]:
        described = self.control.limited_to(None).model("m")["rollout"]
        return next(one for one in described["variants"] if one["name"] == name)


@pytest.fixture
async def deployment(tmp_path: Path) -> AsyncIterator[Deployment]:
    """Version 1 takes indices to 9, version 2 to 2, and both fail beyond."""
    deployment = Deployment(tmp_path / "models")
    deployment.put(1, onnx_models.gather(size=10))
    deployment.put(2, onnx_models.gather(size=3))
    await deployment.disk.reconcile()
    yield deployment
    deployment.rollouts.close()
    deployment.disk.registry.close()
    deployment.disk.scheduler.close()


HALVES = "variants: {stable: {version: 1, weight: 1}, canary: {version: 2, weight: 1}}"
ALL = "variants: {stable: {version: 1, weight: 0}, canary: {version: 2, weight: 1}}"


async def test_without_a_rollout_the_highest_version_answers(deployment: Deployment) -> None:
    """No variant is named."""
    assert await deployment.ask(times=3) == {("", "OK"): 3}
    assert "rollout" not in deployment.control.limited_to(None).model("m")


async def test_callers_are_split_and_stay(deployment: Deployment) -> None:
    """Weights decide without a key, the key decides with one."""
    deployment.apply(HALVES + ", sticky: {parameter: user}")
    split = await deployment.ask(times=400)
    assert 80 < split["stable", "OK"] < 320
    for user in map(str, range(20)):
        assert len(await deployment.ask(times=5, key=user)) == 1


async def test_versions_and_labels_are_pinned_past_the_rollout(deployment: Deployment) -> None:
    """A label answers with its name, a version without; neither is evidence."""
    deployment.apply(f"{HALVES}, {GUARD}")
    assert await deployment.ask(times=9, label="canary") == {("canary", "OK"): 9}
    assert await deployment.ask(times=9, version="2") == {("", "OK"): 9}
    deployment.rollouts.judge()
    assert deployment.described("canary")["evidence"]["errors"]["requests"] == 0
    with pytest.raises(NotFound, match="did you mean 'canary'"):
        await deployment.ask(label="canari")


async def test_a_variant_without_its_version_hands_its_callers_to_the_baseline(
    deployment: Deployment,
) -> None:
    """No caller is turned away for it."""
    deployment.apply(HALVES.replace("version: 2", "version: 7"))
    assert await deployment.ask(times=50) == {("stable", "OK"): 50}
    assert "version 7 of variant canary is not ready" in deployment.rollouts.problems()[0]


NEXT = "variants: {next: {version: 3, weight: 1}}"


async def test_a_rollout_waits_until_its_baseline_is_ready(deployment: Deployment) -> None:
    """Until then traffic is routed as before, and the versions that it names are wanted."""
    deployment.apply(HALVES.replace("weight: 1}}", "weight: 0}}"))
    deployment.apply(NEXT)
    assert await deployment.ask(times=20) == {("stable", "OK"): 20}
    assert deployment.rollouts.pinned == {"m": {1, 2, 3}}
    assert "waits until version 3, its baseline, is ready" in deployment.rollouts.problems()[0]
    deployment.rollouts.begin_waiting()
    assert await deployment.ask(times=20) == {("stable", "OK"): 20}
    deployment.put(3, onnx_models.gather(size=10))
    await deployment.disk.reconcile()
    deployment.rollouts.begin_waiting()
    assert await deployment.ask(times=20) == {("next", "OK"): 20}
    assert deployment.rollouts.pinned == {"m": {3}}
    assert deployment.rollouts.problems() == []


async def test_a_first_rollout_waits_too(deployment: Deployment) -> None:
    """The highest version answers until then; without the rollout, nothing is waited for."""
    deployment.apply(NEXT)
    assert await deployment.ask(times=3) == {("", "OK"): 3}
    deployment.apply("")
    assert deployment.rollouts.pinned == {}
    assert deployment.rollouts.problems() == []


async def test_what_was_rolled_back_stays_so_when_its_rollout_begins(
    deployment: Deployment,
) -> None:
    """Another replica decided about a version while its rollout waited here."""
    deployment.apply("variants: {next: {version: 3, weight: 1}, canary: {version: 2, weight: 9}}")
    deployment.rollouts.follow(recorded(Decision.now(2, "error_rate", "too many")))
    deployment.put(3, onnx_models.gather(size=10))
    await deployment.disk.reconcile()
    deployment.rollouts.begin_waiting()
    assert await deployment.ask(times=20) == {("next", "OK"): 20}


async def test_where_nothing_serves_a_rollout_does_not_wait(tmp_path: Path) -> None:
    """At the start no caller is given a version that the rollout keeps from them."""
    deployment = Deployment(tmp_path / "models")
    deployment.put(1, onnx_models.gather(size=10))
    deployment.apply("variants: {next: {version: 3, weight: 1}, canary: {version: 1, weight: 0}}")
    await deployment.disk.reconcile()
    with pytest.raises(NotReady, match="baseline"):
        await deployment.ask()
    deployment.disk.registry.close()
    deployment.disk.scheduler.close()


async def test_a_variant_that_fails_where_the_baseline_does_not_is_rolled_back(
    deployment: Deployment,
) -> None:
    """It happens at once; its callers get the baseline, and metrics and page show the reason."""
    deployment.apply(f"{HALVES}, {GUARD}")
    state = deployment.disk.models.parent
    watcher = RolloutWatcher(state / "rollouts.yaml", state, deployment.rollouts)
    metrics = RolloutGauges(deployment.rollouts, watcher)
    seen: dict[str, float] = {}
    while True:
        answers = await deployment.ask(5, times=40)
        assert set(answers) <= {("stable", "OK"), ("canary", "InvalidInput"),
                                ("canary", "InferenceFailed")}  # fmt: skip
        await deployment.settle()
        seen = {
            f"{one.name} {one.labels.get('side', '')}".strip(): one.value
            for family in metrics.collect()
            for one in family.samples
            if one.labels.get("limit") == "errors"
        }
        deployment.rollouts.judge()
        if deployment.is_out("canary"):
            break
    assert 0 < seen["rollout_evidence_log10"] < seen["rollout_evidence_threshold_log10"]
    assert seen["rollout_evidence_bad_requests variant"] > 0
    assert seen["rollout_evidence_bad_requests baseline"] == 0
    assert seen["rollout_evidence_requests baseline"] > 0
    assert await deployment.ask(5, times=50) == {("stable", "OK"): 50}
    (event,) = deployment.events
    assert isinstance(event, RolledBack)
    assert (event.variants, event.reason, event.decided_here) == (("canary",), "errors", True)
    assert deployment.described("canary")["reason"] == "errors"
    assert deployment.described("canary")["share"] == 0
    assert deployment.rollouts.pending_records["m", 2].reason == "errors"


async def test_inputs_that_fail_on_both_sides_roll_nothing_back(deployment: Deployment) -> None:
    """This holds even if the caller that sends them sticks to the canary."""
    deployment.apply(f"{HALVES}, sticky: {{header: x-user}}, {GUARD}")
    names = {key: deployment.rollout.choose(key).name for key in map(str, range(20))}
    theirs = next(key for key, name in names.items() if name == "canary")
    ours = next(key for key, name in names.items() if name == "stable")
    for _ in range(20):
        bad = await deployment.ask(99, times=10, key=theirs)
        await deployment.ask(0, times=10, key=ours)
        assert {variant for variant, _ in bad} == {"canary"}
        assert not any(code == "OK" for _, code in bad)
        await deployment.settle()
        deployment.rollouts.judge()
    assert not deployment.events
    evidence = deployment.described("canary")["evidence"]["errors"]
    assert evidence["failed_on_both"] >= 1  # of one caller, one is tried in a while
    assert evidence["bad"] == 0


async def test_a_variant_that_takes_other_inputs_is_told_of(deployment: Deployment) -> None:
    """Its callers get 400, which is not evidence.

    A config that allows the change ends the report.
    """
    deployment.put(3, onnx_models.mlp())
    await deployment.disk.reconcile()
    deployment.apply(HALVES.replace("canary: {version: 2", "canary: {version: 3"))
    (problem,) = deployment.rollouts.problems()
    assert problem == (
        "rollout of m: version 3 of variant canary does not accept what callers send: "
        "it needs input 'x', unlike version 1, the baseline"
    )
    deployment.apply(f"{HALVES}, shadow: {{version: 3}}")
    (problem,) = deployment.rollouts.problems()
    assert "version 3 of the shadow does not accept" in problem
    config = deployment.disk.models / "m" / "config.yaml"
    config.write_text(config.read_text() + "allow_signature_change: true\n")
    await deployment.disk.reconcile()
    assert deployment.rollouts.problems() == []


async def test_refusals_before_the_run_are_no_evidence(deployment: Deployment) -> None:
    """They count neither as good nor as bad: nothing ran."""
    deployment.apply(f"{HALVES}, {GUARD}")
    for _ in range(30):
        with deployment.plane.pick("m") as lease, pytest.raises(InvalidInput):
            await infer(lease, {"nonsense": np.zeros(1, np.float32)})
    await deployment.ask(0, label="stable")
    deployment.rollouts.judge()
    assert deployment.described("canary")["evidence"]["errors"]["requests"] == 0


async def test_a_rollback_outlives_edits_of_weights_and_ends_when_the_version_leaves(
    deployment: Deployment,
) -> None:
    """When it returns, the version starts from zero; its file will be removed."""
    deployment.apply(HALVES)
    deployment.rollouts.roll_back("m", "canary")
    deployment.apply(ALL)
    assert deployment.is_out("canary")
    deployment.apply("variants: {stable: {version: 1, weight: 1}}")
    assert deployment.rollouts.pending_clears.keys() == {("m", 2)}
    deployment.apply(HALVES)
    assert not deployment.is_out("canary")
    assert isinstance(deployment.events[-1], Restored)


async def test_an_operator_rolls_back_and_clears(deployment: Deployment) -> None:
    """This works for a variant, or all of a model; the baseline has nowhere to go."""
    deployment.apply(HALVES)
    described = await deployment.control.roll_back("m", "canary")
    assert [one["rolled_back"] for one in described["variants"]] == [False, True]
    assert described["saved"] is False  # no watcher writes here
    assert await deployment.ask(times=20) == {("stable", "OK"): 20}
    await deployment.control.clear("m", "canary")
    assert len(await deployment.ask(times=50)) == 2
    await deployment.control.roll_back("m", "canary")
    described = await deployment.control.clear("m")
    assert not any(one["rolled_back"] for one in described["variants"])
    with pytest.raises(InvalidInput, match="baseline"):
        await deployment.control.roll_back("m", "stable")
    with pytest.raises(NotFound):
        await deployment.control.roll_back("m", "canari")
    with pytest.raises(NotFound):
        await deployment.control.clear("n")


async def test_decisions_of_other_processes_are_applied(deployment: Deployment) -> None:
    """They end if they were cleared, and stay if their record is gone."""
    deployment.apply(HALVES)
    decision = Decision(2, "latency", "", "2026-01-01")
    deployment.rollouts.follow(recorded(decision))
    assert await deployment.ask(times=20) == {("stable", "OK"): 20}
    (event,) = deployment.events
    assert isinstance(event, RolledBack)
    assert not event.decided_here
    deployment.rollouts.follow(recorded())
    assert deployment.is_out("canary")
    assert deployment.rollouts.pending_records == {("m", 2): decision}
    deployment.rollouts.pending_records.clear()
    deployment.rollouts.follow(recorded(cleared=decision))
    assert len(await deployment.ask(times=50)) == 2


async def test_what_cannot_be_known_is_not_guessed(deployment: Deployment) -> None:
    """No candidate serves before it is known what was decided; an operator's word goes further."""
    deployment.rollouts.hold("the state folder cannot be read")
    deployment.apply(HALVES)
    assert await deployment.ask(times=20) == {("stable", "OK"): 20}
    assert deployment.described("canary")["reason"] == "unknown"
    assert not deployment.rollouts.pending_records
    deployment.rollouts.follow(recorded())
    assert len(await deployment.ask(times=50)) == 2
    deployment.rollouts.hold("again")
    deployment.rollouts.roll_back("m", "canary")
    deployment.rollouts.follow(recorded())
    assert deployment.described("canary")["reason"] == "operator"


def recorded(*decisions: Decision, cleared: Decision | None = None) -> Recorded:
    """Return a state folder's content for `m`."""
    ended = {"m": frozenset({cleared.digest})} if cleared else {}
    return Recorded({"m": {one.version: one for one in decisions}}, ended, ())


# -- shadows


async def test_a_shadow_is_compared_and_answers_no_caller(deployment: Deployment) -> None:
    """A shadow that fails disagrees."""
    deployment.put(3, onnx_models.gather(size=10))
    await deployment.disk.reconcile()
    deployment.apply(
        "variants: {stable: {version: 1, weight: 1}}, shadow: {version: 3, keep_examples: 2}"
    )
    assert await deployment.ask(5, times=30) == {("stable", "OK"): 30}
    compared = await deployment.events.wait_for(Compared, 30)
    assert [one.disagrees for one in compared] == [False] * 30
    assert (await deployment.control.shadow_examples("m")) == []

    deployment.apply(
        "variants: {stable: {version: 1, weight: 1}}, shadow: {version: 2, keep_examples: 2}"
    )
    deployment.events.clear()
    assert await deployment.ask(5, times=30) == {("stable", "OK"): 30}
    compared = await deployment.events.wait_for(Compared, 30)
    assert [one.disagrees for one in compared] == [True] * 30
    examples = await deployment.control.shadow_examples("m")
    assert len(examples) == 2
    assert examples[0]["shadow"] is None
    assert list(examples[0]["inputs"].values()) == [[5]]


async def test_redacted_values_are_not_shown(deployment: Deployment) -> None:
    """Inputs and outputs by name, and the failure, which may contain a value."""
    deployment.apply(
        "variants: {stable: {version: 1, weight: 1}}, "
        "shadow: {version: 2, keep_examples: 1, redact: [index]}"
    )
    await deployment.ask(5)
    await deployment.events.wait_for(Compared, 1)
    (example,) = await deployment.control.shadow_examples("m")
    assert example["inputs"] == {"index": "redacted"}
    assert example["failure"] == "redacted"
    assert example["answered"] == {"y": [50.0]}


async def test_a_shadow_that_disagrees_is_stopped_with_its_variants(deployment: Deployment) -> None:
    """It copies no more, until an operator clears it."""
    deployment.apply(
        "variants: {stable: {version: 1, weight: 9}, canary: {version: 2, weight: 1}}, "
        "shadow: {version: 2}, guard: {max_disagreement: 0.02, min_requests: 20}"
    )
    while not deployment.rollout.shadow_stopped:
        await deployment.ask(5, times=40)
        await deployment.settle()
        deployment.rollouts.judge()
    assert deployment.is_out("canary")
    (event,) = [one for one in deployment.events if isinstance(one, RolledBack)]
    assert (event.shadow, event.reason) == (True, "disagreement")
    deployment.events.clear()
    await deployment.ask(5, times=20)
    await deployment.settle()
    assert deployment.events == []
    deployment.rollouts.clear("m")
    deployment.events.clear()
    answered = await deployment.ask(0, times=40)
    compared = await deployment.events.wait_for(Compared, answered["stable", "OK"])
    assert not any(one.disagrees for one in compared), "of the copies before, none was made"


async def test_half_a_queue_of_copies_is_a_full_batch(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds for any size of the model's own batches."""
    monkeypatch.setattr("cohort.onnx_engine.batched_session.SHADOW_DELAY_MS", 1e6)
    loaded = deployment.disk.registry.catalog["m"].versions[2].engine
    assert isinstance(loaded, BatchedSession)
    loaded._batcher.policy = replace(loaded._batcher.policy, max_batch_size=512)
    deployment.apply("variants: {stable: {version: 1, weight: 1}}, shadow: {version: 2}")
    for _ in range(128):
        await deployment.ask(0)
    assert len(await deployment.events.wait_for(Compared, 128)) == 128
    assert not any(isinstance(one, Dropped) for one in deployment.events)


async def test_a_variant_that_loses_batching_says_why(tmp_path: Path) -> None:
    """The reason is given only if the baseline's requests may share runs."""
    deployment = Deployment(tmp_path / "models")
    deployment.put(1, onnx_models.identity())
    deployment.put(2, onnx_models.normalized_over_rows())
    await deployment.disk.reconcile()
    try:
        variants = "variants: {stable: {version: 1, weight: 9}, canary: {version: 2, weight: 1}}"
        deployment.apply(variants)
        assert deployment.described("stable")["batching_lost"] == ""
        assert "ReduceMean 'mean'" in deployment.described("canary")["batching_lost"]
        deployment.apply(f"baseline: canary, {variants}")
        assert deployment.described("stable")["batching_lost"] == ""
        assert deployment.described("canary")["batching_lost"] == ""
    finally:
        deployment.rollouts.close()
        deployment.disk.registry.close()
        deployment.disk.scheduler.close()
