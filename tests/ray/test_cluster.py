"""A day of a cluster of two nodes: kills, an update and load, and what its callers got."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import onnx_models
from tests.ray.namespace import in_namespace

ROOT = Path(__file__).parents[2]

pytest.importorskip("ray", reason="needs .venv-ray: make ray")


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The answers that callers got in each part of the day, in a namespace that ends with it."""
    folder = tmp_path_factory.mktemp("day")
    shutil.copytree(ROOT / "models", folder / "models")
    onnx_models.save(onnx_models.slow(), folder / "models/slow/1/model.onnx")
    patient = "timeout_ms: 300000\nbatching: {max_queue_seconds: 300}\n"  # the machine may be slow
    (folder / "models/slow/config.yaml").write_text(patient)
    program = f"{sys.executable} -m tests.ray.day {folder / 'models'}"
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'app'}:{ROOT}",
        "RAY_raylet_start_wait_time_s": "180",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    done = subprocess.run(
        in_namespace(program),
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=ROOT,
        timeout=1800,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_routes_and_errors_are_those_of_the_server(day: dict[str, Any]) -> None:
    """Through Ray's proxies, over HTTP and gRPC."""
    assert day["answers"] == [
        ["GET", "/health/ready", 200, None],
        ["POST", "/predict", 200, None],
        ["POST", "/v1/models/iris:predict", 200, None],
        ["GET", "/v2/models/iris/ready", 200, None],
        ["POST", "/models/irs/predict", 404, "ModelNotFound"],
        ["POST", "/models/iris/predict", 400, "InvalidInput"],
        ["GET", "/nothing", 404, "NotFound"],
        ["PUT", "/predict", 405, "MethodNotAllowed"],
    ]
    assert day["rpc"] == [["label"], ["NOT_FOUND", "model 'irs' not found; did you mean 'iris'?"]]


@pytest.mark.parametrize(
    "part",
    [
        "replica killed",
        "node killed and added",
        "rolling update",
    ],
)
def test_no_request_is_lost(day: dict[str, Any], part: str) -> None:
    """Callers that do not retry get the right answer to every request."""
    assert day[part].keys() == {"right"}
    assert day[part]["right"] > 100


def test_replicas_follow_the_queue_and_lose_nothing(day: dict[str, Any]) -> None:
    """From one to four under load, and back to one without it."""
    assert day["replicas"] == [1, 4, 1]
    assert day["scaled, light"].keys() == {"right"}
    assert day["scaled, heavy"].keys() == {"right"}


def test_models_are_found_where_they_are(day: dict[str, Any]) -> None:
    """Replicas hold one model at a time; one model has a separate deployment."""
    assert day["models in places"] == {"right": 15}


def test_pieces_of_a_stream_pass_one_by_one(day: dict[str, Any]) -> None:
    """The server sends the second piece only after the caller has the first, in both protocols.

    A caller who leaves ends the stream in the replica.
    """
    assert day["events"] == ["data: 1\n\n", "data: 1\n\n", "data: 2\n\n"]
    assert day["live"] == "event: bounds"
    assert day["metrics"] == [200, True]
    unknown = "ModelNotFound: model 'irs' not found; did you mean 'iris'?"
    assert day["messages"] == [["to iris", ""], ["to irs", unknown], ["to iris", ""], []]


def test_a_rollback_holds_in_all_replicas(day: dict[str, Any]) -> None:
    """One replica was asked for it; the others follow, and new ones after a restart."""
    assert day["rollback"] == [200, [10, 10], [0, 0], [0, 0]]


def test_a_file_scored_on_the_cluster_is_that_of_one_process(day: dict[str, Any]) -> None:
    """With the error of the row that failed."""
    assert day["scored"] == [1, 1, True, 3000]
