"""Models whose loads do not end, next to good ones."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests import onnx_models
from tests.e2e.processes import Cohort, cohort
from tests.waiting import PATIENCE, wait_until

GOOD = [f"good-{number}" for number in range(5)]
TOKEN = "secret-0123456789"

DRAINING = 3600
"""Seconds that a server has to stop, and a load to end: a stop that waited for one would show."""

STAGES = {"runs": "in its first runs", "opens": "opening a session"}
"""Models by their endless work, and the name of that work in messages."""


def write_models(folder: Path, load_timeout: float) -> Path:
    """Write good models, and two that load indefinitely, which come first."""
    models = folder / "models"
    for name in GOOD:
        onnx_models.save(onnx_models.mlp(), models / name / "1" / "model.onnx")
    for name, bad in (
        ("runs", onnx_models.endless()),
        ("opens", onnx_models.slow_to_open(products=3000, size=1024)),
    ):
        path = onnx_models.save(bad, models / f"bad-{name}" / "1" / "model.onnx")
        (path.parents[1] / "config.yaml").write_text(f"load_timeout_s: {load_timeout}")
    return models


def ready(server: Cohort) -> set[str]:
    """The models that serve."""
    models: dict[str, dict[str, str]] = server.get("/health").json()["models"]
    return {name for name, versions in models.items() if "READY" in versions.values()}


def unready(server: Cohort) -> str:
    """Why it is not ready."""
    return str(server.get("/health/ready").json().get("error", ""))


def stops(server: Cohort) -> bool:
    """Return True if it stops well, without waiting for work that would end in an hour."""
    return server.stop(timeout=PATIENCE) == 0


@pytest.mark.parametrize("inspected", [False, True])
def test_loads_without_end_hold_up_nothing(tmp_path: Path, inspected: bool) -> None:
    """Good models serve, an operator gets answers, and the stop does not wait.

    Readiness names the missing models.
    """
    models = write_models(tmp_path, DRAINING)
    with cohort(
        models,
        tmp_path,
        ready=False,
        admin_token=TOKEN,
        inspection_seconds=600 * inspected,
        drain_seconds=DRAINING,
    ) as server:
        wait_until(lambda: ready(server) == set(GOOD))
        for name, stage in STAGES.items():
            said = f"bad-{name} 1 ({'being inspected' if inspected else stage})"
            wait_until(lambda said=said: said in unready(server))  # type: ignore[misc]
        onnx_models.save(onnx_models.mlp(seed=1), models / "good-0" / "2" / "model.onnx")
        with httpx.Client(
            base_url=f"{server.url}/admin/models/good-0",
            headers={"authorization": f"Bearer {TOKEN}"},
            timeout=PATIENCE,
        ) as operator:
            loaded = operator.post("/load")
            assert loaded.json()["default_version"] == "2", loaded.text
            assert operator.post("/unload").status_code == 200
        assert not ready(server) - set(GOOD)
        assert stops(server)


def test_loads_without_end_are_given_up(tmp_path: Path) -> None:
    """After load_timeout_s the server is ready without them and reports why."""
    models = write_models(tmp_path, 8)
    with cohort(models, tmp_path, inspection_seconds=0, drain_seconds=DRAINING) as server:
        assert ready(server) == set(GOOD)
        for name, stage in STAGES.items():
            told = server.get(f"/models/bad-{name}/versions/1").json()
            said = f"loading took longer than 8 s (load_timeout_s); last stage: {stage}"
            assert said in told["reason"]
        assert stops(server)
