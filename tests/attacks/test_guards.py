"""Callers who want a candidate rolled back, and choose keys that keep them on it."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests import onnx_models
from tests.e2e.processes import cohort
from tests.waiting import PATIENCE

CALLERS = 300

ROLLOUT = """
taken:
  variants: {stable: {version: 1, weight: 1}, canary: {version: 2, weight: 1}}
  sticky: {header: x-user-id}
  guard: {max_error_rate_increase: 0.01, min_requests: 50}
"""


@pytest.mark.parametrize(
    ("model", "config", "good", "bad", "status"),
    [
        (onnx_models.gather(), "", {"index": [0]}, {"index": [99]}, 400),
        (onnx_models.loop(), "timeout_ms: 200\n", {"n": [[1]]}, {"n": [[10**6]]}, 504),
    ],
    ids=["a value that fails", "a value that takes too long"],
)
def test_values_that_fail_on_both_versions_are_no_evidence(
    tmp_path: Path, model: object, config: str, good: object, bad: object, status: int
) -> None:
    """The candidate is not rolled back, though a caller sends bad values to it alone."""
    for version in (1, 2):
        onnx_models.save(model, tmp_path / f"models/taken/{version}/model.onnx")  # type: ignore[arg-type]
    (tmp_path / "models/taken/config.yaml").write_text(f"versions: all\n{config}")
    (tmp_path / "rollouts.yaml").write_text(ROLLOUT)
    with (
        cohort(tmp_path / "models", tmp_path, rollouts=tmp_path / "rollouts.yaml") as server,
        httpx.Client(base_url=server.url, timeout=PATIENCE) as client,
    ):

        def ask(key: int, inputs: object) -> httpx.Response:
            headers = {"x-user-id": str(key)}
            return client.post("/models/taken/predict", json={"inputs": inputs}, headers=headers)

        chosen = [key for key in range(CALLERS) if ask(key, good).json()["variant"] == "canary"]
        assert len(chosen) > CALLERS / 3
        assert {ask(key, bad).status_code for key in chosen} == {status}
        for key in range(CALLERS, 2 * CALLERS):
            ask(key, good)
        variants = client.get("/models/taken").json()["rollout"]["variants"]
        assert not any(one["rolled_back"] for one in variants)
        evidence = variants[1]["evidence"]["errors"]
        assert evidence["requests"] >= CALLERS / 3
        assert evidence["log_e"] < evidence["threshold"] / 2
