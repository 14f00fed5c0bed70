"""A server that starts with an invalid rollouts file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.processes import MODELS, cohort
from tests.waiting import wait_until

IRIS = {"inputs": {"features": [[5.1, 3.5, 1.4, 0.2]]}}
DIGITS = {"inputs": {"image": [[[[0.0] * 8] * 8]]}}
VALID = "digits: {variants: {a: {version: 1, weight: 1}}}\n"


@pytest.mark.parametrize(
    "settings", [{}, {"workers": 2}, {"max_loaded_models": 1}], ids=["one", "workers", "on demand"]
)
def test_other_models_serve_until_it_is_corrected(tmp_path: Path, settings: dict[str, Any]) -> None:
    """Models that it names are unavailable, with its problem as the reason."""
    rollouts = tmp_path / "rollouts.yaml"
    rollouts.write_text(VALID.replace("weight", "wieght"))
    with cohort(MODELS, tmp_path, rollouts=rollouts, **settings) as server:
        health = server.get("/health").json()
        assert health["ready"]
        assert any("wieght" in problem for problem in health["problems"])
        held = httpx.post(f"{server.url}/models/digits/predict", json=DIGITS)
        assert (held.status_code, held.json()["code"]) == (503, "NotReady")
        assert "rollouts.yaml" in held.json()["error"]
        answer = httpx.post(f"{server.url}/models/iris/predict", json=IRIS)
        assert answer.status_code == 200
        assert httpx.get(f"{server.url}/v1/models/digits").json()["ready"] is False
        assert server.logged.count("version unavailable") <= 2 * int(settings.get("workers", 1))
        rollouts.write_text(VALID)

        def answered() -> bool:
            told = httpx.post(f"{server.url}/models/digits/predict", json=DIGITS)
            return told.status_code == 200 and told.json()["variant"] == "a"

        wait_until(answered)
        wait_until(lambda: server.get("/health").json()["problems"] == [])
