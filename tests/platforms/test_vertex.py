"""Vertex AI starts the process with AIP_* variables, and calls the routes that they name.

https://cloud.google.com/vertex-ai/docs/predictions/custom-container-requirements
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import httpx
import pytest

from tests.bundled import model_path
from tests.e2e.processes import free_port, run_command
from tests.platforms.starting import platform

PREDICT = "/v1/endpoints/8123/deployedModels/4567:predict"
HEALTH = "/v1/endpoints/8123/deployedModels/4567"


def artifacts(folder: Path) -> Path:
    """Return a folder with a model's artifacts."""
    folder.mkdir()
    shutil.copy(model_path("iris", 1), folder / "flowers.onnx")
    return folder


def variables(port: int, folder: Path, predict: str = PREDICT) -> dict[str, str]:
    return {
        "AIP_HTTP_PORT": str(port),
        "AIP_PREDICT_ROUTE": predict,
        "AIP_HEALTH_ROUTE": HEALTH,
        "AIP_STORAGE_URI": str(folder),
        "AIP_PROJECT_NUMBER": "12345",
        "AIP_MODE": "PREDICTION",
    }


@pytest.mark.parametrize("predict", [PREDICT, "/predict"])
def test_predictions_answer_instances(tmp_path: Path, predict: str) -> None:
    """One for each instance, on the route that the model names; the health route gets 200."""
    port, folder = free_port(), artifacts(tmp_path / "artifacts")
    with platform(port, tmp_path, variables(port, folder, predict), ready=HEALTH) as server:
        rows = [[5.1, 3.5, 1.4, 0.2], [6.3, 3.3, 6.0, 2.5]]
        for body in (
            {"instances": rows},
            {"instances": [{"features": row} for row in rows]},
            {"instances": rows, "parameters": {}},
        ):
            answer = httpx.post(server.url + predict, json=body)
            assert [one["label"] for one in answer.json()["predictions"]] == [0, 2]
        refused = httpx.post(server.url + predict, json={"instances": [[1.0]]})
        assert refused.status_code == 400
        assert "features" in refused.json()["error"]


def test_the_health_route_is_readiness(tmp_path: Path) -> None:
    """Without a model it gets 503, and so does a name that /health has as a summary; no key."""
    port = free_port()
    (tmp_path / "empty").mkdir()
    keys = tmp_path / "keys.yaml"
    keys.write_text(json.dumps({"me": {"key_sha256": "0" * 64}}))
    environment = variables(port, tmp_path / "empty") | {
        "AIP_HEALTH_ROUTE": "/health",
        "COHORT_API_KEYS": str(keys),
    }
    with platform(port, tmp_path, environment, ready="/health/live") as server:
        assert server.get("/health").status_code == 503


def test_artifacts_of_several_models_are_served_by_name(tmp_path: Path) -> None:
    """The folder is a repository."""
    port = free_port()
    folder = tmp_path / "artifacts"
    for name in ("iris", "digits"):
        (folder / name / "1").mkdir(parents=True)
        shutil.copy(model_path(name, 1), folder / name / "1/model.onnx")
    with platform(port, tmp_path, variables(port, folder), ready=HEALTH) as server:
        assert [one["name"] for one in server.get("/models").json()["models"]] == ["digits", "iris"]


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("AIP_HTTP_PORT", "http", "COHORT_PORT: AIP_HTTP_PORT must be a whole number, got 'http'"),
        ("SAGEMAKER_BIND_TO_PORT", "0x1F90", "SAGEMAKER_BIND_TO_PORT must be a whole number"),
        ("PORT", "80800", "COHORT_PORT: PORT must be <= 65535, got '80800'"),
        ("AIP_PREDICT_ROUTE", "predict", "AIP_PREDICT_ROUTE must be a path such as /predict"),
        ("AIP_PREDICT_ROUTE", "/metrics", "/metrics is another route of the server"),
        ("AIP_PREDICT_ROUTE", "/models/a/predict", "is another route of the server"),
        ("AIP_HEALTH_ROUTE", "/predict", "/predict is another route of the server"),
        ("AIP_HEALTH_ROUTE", "/v1/models/a", "is another route of the server"),
        ("AIP_STORAGE_URI", "ftp://x/y", "AIP_STORAGE_URI must be a folder, or an address"),
    ],
)
def test_an_invalid_value_is_refused_by_the_name_of_its_variable(
    name: str, value: str, sentence: str
) -> None:
    """At the start."""
    done = run_command("serve", env={name: value})
    assert done.returncode == 2
    assert sentence in done.stderr


def test_own_settings_come_first(tmp_path: Path) -> None:
    """COHORT_PORT and COHORT_MODELS replace what the platform gives."""
    port, folder = free_port(), artifacts(tmp_path / "artifacts")
    environment = variables(1, tmp_path / "nowhere") | {
        "COHORT_PORT": str(port),
        "COHORT_MODELS": str(folder),
        "COHORT_MODEL_NAME": "flowers",
    }
    with platform(port, tmp_path, environment, ready=HEALTH) as server:
        assert server.get("/v2/models/flowers/ready").status_code == 200
