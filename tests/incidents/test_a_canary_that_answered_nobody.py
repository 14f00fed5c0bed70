"""A canary ran, and its callers got errors. The guard took the runs for successes."""

from __future__ import annotations

import itertools
import time
from math import inf
from pathlib import Path
from typing import Any

import httpx
import onnx
import pytest

from tests import onnx_models
from tests.e2e.load import encode, send, under_load
from tests.e2e.processes import cohort
from tests.e2e.scrape import Scrape
from tests.waiting import until

HALVES = """
m:
  variants: {stable: {version: 1, weight: 1}, canary: {version: 2, weight: 1}}
  guard: {max_error_rate_increase: 0.01}
"""
PATH = "/models/m/predict"


def prepare(folder: Path, *versions: onnx.ModelProto) -> None:
    """Write the models, and the operator's rollout if there are two."""
    for number, model in enumerate(versions, 1):
        onnx_models.save(model, folder / "models" / "m" / str(number) / "model.onnx")
    (folder / "models" / "m" / "config.yaml").write_text("versions: all\nproviders: [cpu]\n")
    (folder / "rollouts.yaml").write_text(HALVES if len(versions) > 1 else "")


def canary(url: str) -> dict[str, Any]:
    """The canary as an operator sees it."""
    found: dict[str, Any] = httpx.get(f"{url}/models/m").json()["rollout"]["variants"][1]
    return found


@pytest.mark.parametrize(
    ("good", "broken", "value", "status"),
    [
        (onnx_models.times(2.0), onnx_models.times(inf), {"x": [[1.0, 1.0, 1.0]]}, 500),
        (onnx_models.gather(size=10), onnx_models.gather(size=3), {"index": [5]}, 400),
    ],
    ids=["infinity in JSON", "an index out of a broken export's table"],
)
async def test_a_canary_that_answered_nobody(
    tmp_path: Path, good: onnx.ModelProto, broken: onnx.ModelProto, value: object, status: int
) -> None:
    """299 of 299 callers got 500 (89 of 89 got 400), and the evidence was `bad 0`.

    Now the canary is rolled back within seconds, and its callers get the baseline's answers.
    """
    prepare(tmp_path, good, broken)
    request = encode(PATH, {"inputs": value})
    with cohort(tmp_path / "models", tmp_path, rollouts=tmp_path / "rollouts.yaml") as server:
        # A caller counts once in two seconds: few would give little evidence.
        async with under_load(server.url, itertools.repeat(request), callers=48) as load:
            await until(lambda: canary(server.url)["rolled_back"])
            decided = time.monotonic()
            await until(lambda: sum(one.asked > decided for one in load.outcomes) > 200)
        assert {one.status for one in load.outcomes} == {200, status}
        # Those asked before may be answered late: a failed run is tried again in halves.
        assert {one.status for one in load.outcomes if one.asked > decided} == {200}
        found = canary(server.url)
        assert (found["reason"], found["evidence"]["errors"]["bad"] > 0) == ("errors", True)
        reasons = Scrape(server.url).by("rollout_rollbacks_total", "reason", variant="canary")
        assert reasons == {"errors": 1}


async def test_a_broken_export_without_a_rollout(tmp_path: Path) -> None:
    """A model that answered all callers with 400 looked like their mistakes; now it is counted."""
    prepare(tmp_path, onnx_models.gather(size=3))
    bodies = [{"inputs": {"index": [5]}}] * 20 + [{"inputs": {"index": ["x"]}}] * 5
    with cohort(tmp_path / "models", tmp_path) as server:
        load = await send(server.url, iter([encode(PATH, one) for one in bodies]), callers=2)
        scrape = Scrape(server.url)
    assert load.by(lambda one: one.code) == {"InvalidInput": 25}
    assert scrape.value("model_run_refused_total", model="m", version="1") == 20
    assert scrape.value("model_inference_total", model="m", code="InvalidInput") == 25
