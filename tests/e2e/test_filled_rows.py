"""A version whose runs are filled up, served by a real process.

Devices that need it are GPUs; what one would have measured is written into the kept profile.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx

from tests import onnx_models
from tests.e2e.processes import Cohort, cohort, run_command
from tests.e2e.scrape import Scrape
from tests.waiting import wait_until

ROWS = (1, 3, 31, 32, 50)


def profile_of(server: Cohort) -> dict[str, Any]:
    """The profile of the one version."""
    found: dict[str, Any] = server.get("/models/counts/versions/1").json()["profile"]
    return found


def outputs_for(server: Cohort, rows: int) -> dict[str, Any]:
    """Return the outputs for `rows` rows."""
    body = {"inputs": {"x": [[row, 0.5, -row] for row in range(rows)]}}
    answer = httpx.post(f"{server.url}/models/counts/predict", json=body)
    outputs: dict[str, Any] = answer.raise_for_status().json()["outputs"]
    return outputs


def test_runs_are_filled_up_and_callers_get_what_they_asked_for(tmp_path: Path) -> None:
    """A profile sets the number; larger requests run unchanged. Metrics count callers' rows."""
    onnx_models.save(onnx_models.rows_of_its_run(), tmp_path / "models/counts/1/model.onnx")
    with cohort(tmp_path / "models", tmp_path) as server:
        assert outputs_for(server, 3)["rows"] == [3, 3, 3]
        wait_until(lambda: profile_of(server)["complete"])
        (kept,) = wait_until(lambda: list((tmp_path / "cache/profiles").rglob("*.json")))
    measured = {
        "seconds": {"1": 0.001, "32": 0.001},
        "max_batch_size": 32,
        "reason": "",
        "change_seconds": 0.1,
    }
    kept.write_text(json.dumps(json.loads(kept.read_text()) | measured))
    with cohort(tmp_path / "models", tmp_path) as server:
        found = profile_of(server)
        assert (found["kept"], found["filled_rows"], found["change_seconds"]) == (True, 32, 0.1)
        for rows in ROWS:
            outputs = outputs_for(server, rows)
            assert outputs["y"] == [[row, 0.5, -row] for row in range(rows)]
            assert outputs["rows"] == [max(rows, 32)] * rows
        scrape = Scrape(server.url)
        assert scrape.value("model_batch_rows_sum", model="counts") == sum(ROWS)
    folders = ["--models", str(tmp_path / "models"), "--cache", str(tmp_path / "cache")]
    shown = run_command("profile", "counts", *folders).stdout
    assert "Smaller runs: filled up to 32 rows" in shown
    assert "costs 100 ms" in shown
