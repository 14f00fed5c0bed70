"""A rollout as operators see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from cohort.rollouts import Compared
from cohort.rollouts.description import describe_rollout
from cohort.rollouts.judgement import threshold_of
from tests.rollouts.engines import LiveRig, scores

NOTHING_LOST: Mapping[int, str] = {}
VARIANTS = "variants: {stable: {version: 1, weight: 3}, canary: {version: 2, weight: 1}}"


def described(rig: LiveRig, batching_lost: Mapping[int, str] = NOTHING_LOST) -> dict[str, Any]:
    """As JSON has it."""
    found = describe_rollout(rig.live, {1, 2, 3}, batching_lost)
    return dict(orjson.loads(orjson.dumps(found)))


def test_a_version_that_loses_batching_is_told_with_the_reason() -> None:
    """A variant and the shadow have a reason; for the others it is empty."""
    rig = LiveRig(f"{VARIANTS}, shadow: {{version: 3}}")
    found = described(rig, {2: "Sum adds up", 3: "Max takes the largest"})
    assert [one["batching_lost"] for one in found["variants"]] == ["", "Sum adds up"]
    assert found["shadow"]["batching_lost"] == "Max takes the largest"
    assert [one["batching_lost"] for one in described(rig)["variants"]] == ["", ""]


def test_only_the_limits_that_are_set_have_evidence() -> None:
    """A description has evidence only for limits in the guard; without a shadow it has null."""
    rig = LiveRig(VARIANTS)
    assert described(rig)["shadow"] is None
    assert [one["evidence"] for one in described(rig)["variants"]] == [{}, {}]
    rig = LiveRig(f"{VARIANTS}, shadow: {{version: 3}}, guard: {{max_latency_ratio: 2}}")
    assert "evidence" not in described(rig)["shadow"]
    assert described(rig)["variants"][1]["evidence"].keys() == {"latency"}
    rig = LiveRig(f"{VARIANTS}, shadow: {{version: 3}}, guard: {{max_disagreement: 0.02}}")
    assert described(rig)["shadow"]["evidence"]["requests"] == 0
    assert described(rig)["shadow"]["evidence"].keys() == {
        "requests", "bad", "rate", "log_e", "threshold",
    }  # fmt: skip
    assert described(rig)["variants"][1]["evidence"] == {}


def test_evidence_comes_with_the_baselines_and_the_threshold() -> None:
    """It has four decimal places, so that an operator sees how far it is."""
    rig = LiveRig(f"{VARIANTS}, guard: {{max_error_rate_increase: 0.01}}")
    rig.respond("stable", scores(), times=3)
    rig.respond("canary", scores(), times=2)
    assert rig.weighed() == (3, 0, 2, 0)
    errors = described(rig)["variants"][1]["evidence"]["errors"]
    seen = rig.live.evidence.candidates["canary"].errors
    assert errors["threshold"] == pytest.approx(
        threshold_of(seen.evidence, rig.live.config.guard), abs=0.00005, rel=0
    )
    assert (errors["requests"], errors["baseline_requests"], errors["failed_on_both"]) == (2, 3, 0)


async def test_differences_of_a_shadow_begin_at_zero() -> None:
    """They are the largest differences so far."""
    rig = LiveRig(f"{VARIANTS}, shadow: {{version: 3}}")
    rig.respond("stable", scores(0))
    rig.queue(3).answer_all(scores(0))
    await rig.events.wait_for(Compared, 1)
    same = {"disagreements": 0, "max_abs_difference": 0.0, "max_relative_difference": 0.0}
    assert described(rig)["shadow"]["outputs"] in ({}, {"y": same})
    rig.respond("stable", scores(0))
    rig.queue(3).answer_all(scores(1))
    await rig.events.wait_for(Compared, 2)
    assert described(rig)["shadow"]["outputs"]["y"]["disagreements"] == 1
    assert described(rig)["shadow"]["outputs"]["y"]["max_abs_difference"] == 1.0
