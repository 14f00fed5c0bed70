"""Azure Machine Learning: its files are valid, and the process is started as they say."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from ruamel.yaml import YAML

from tests.bundled import model_path
from tests.e2e.processes import MODELS, ROOT, free_port, write_quick_command
from tests.platforms.starting import platform

FOLDER = ROOT / "deploy/azure"
PLATFORMS = ROOT / ".venv-platforms/bin/python"
HERE = Path(__file__).parent

needs_azure = pytest.mark.skipif(
    not PLATFORMS.exists(), reason="Azure's reader: make .venv-platforms/platforms.stamp"
)


@needs_azure
def test_azure_reads_its_files(tmp_path: Path) -> None:
    """Endpoints and deployments: blue and green differ in the model, and traffic is split.

    A slip in a route's name is refused.
    """
    slip = tmp_path / "slip.yaml"
    text = (FOLDER / "blue-deployment.yaml").read_text()
    slip.write_text(text.replace("liveness_route", "livenes_route"))
    files = [*FOLDER.glob("*.yaml"), slip]
    command = [str(PLATFORMS), str(HERE / "azure_files.py"), *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert "liveness_route" in loaded.pop("slip.yaml")["error"]
    assert not any("error" in one for one in loaded.values())
    blue, green = loaded["blue-deployment.yaml"], loaded["green-deployment.yaml"]
    assert blue["environment"] == green["environment"]
    assert (blue["model"]["version"], green["model"]["version"]) == ("1", "2")
    assert loaded["online-endpoint-shift.yaml"]["traffic"] == {"blue": 90, "green": 10}
    assert loaded["online-endpoint-mirror.yaml"]["mirror_traffic"] == {"green": 10}
    batch = loaded["batch-deployment.yaml"]
    assert batch["endpoint_name"] == loaded["batch-endpoint.yaml"]["name"]
    assert (FOLDER / batch["code_configuration"]["code"] / "score.py").exists()


@pytest.mark.parametrize("registered", ["file", "repository"])
def test_an_online_deployment_answers_on_the_routes_of_its_environment(
    tmp_path: Path, registered: str
) -> None:
    """AZUREML_MODEL_DIR holds the registered file, or the registered folder by its name."""
    document = YAML(typ="safe").load((FOLDER / "blue-deployment.yaml").read_text())
    routes = {
        name: one["path"] for name, one in document["environment"]["inference_config"].items()
    }
    folder, port = tmp_path / "azureml-models/iris/1", free_port()
    folder.mkdir(parents=True)
    if registered == "file":
        shutil.copy(model_path("iris", 1), folder / "flowers.onnx")
    else:
        shutil.copytree(MODELS, folder / "models")
    environment = document["environment_variables"] | {
        "AZUREML_MODEL_DIR": str(folder),
        "COHORT_PORT": str(port),
        "COHORT_DEFAULT_MODEL": "iris",
    }
    with platform(port, tmp_path, environment, ready=routes["readiness_route"]) as server:
        assert server.get(routes["liveness_route"]).status_code == 200
        rows = {"instances": [[5.1, 3.5, 1.4, 0.2]]}
        answer = httpx.post(server.url + routes["scoring_route"], json=rows)
        assert answer.json()["predictions"][0]["label"] == 0


def scoring_script() -> ModuleType:
    """The script of the batch deployment, imported as Azure's runner does."""
    spec = importlib.util.spec_from_file_location("score", FOLDER / "batch/score.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_batch_deployment_scores_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`init` starts a server for AZUREML_MODEL_DIR, and `run` returns a line for each row."""
    shutil.copy(model_path("iris", 1), tmp_path / "flowers.onnx")
    programs = tmp_path / "bin"
    programs.mkdir()
    write_quick_command(programs)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("AZUREML_MODEL_DIR", str(tmp_path))
    monkeypatch.setenv("COHORT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COHORT_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("COHORT_INSPECTION_SECONDS", "0")
    (tmp_path / "a.csv").write_text("a,b,c,d\n5.1,3.5,1.4,0.2\n")
    (tmp_path / "b.json").write_text('{"instances": [[6.3, 3.3, 6.0, 2.5], [5.1, 3.5, 1.4, 0.2]]}')
    (tmp_path / "c.json").write_text('{"instances": [[1]]}')
    score = scoring_script()
    score.init()
    try:
        lines = score.run([str(tmp_path / "a.csv"), str(tmp_path / "b.json")])
        found = [line.split("\t") for line in lines]
        assert [(file, row) for file, row, _ in found] == [
            ("a.csv", "0"),
            ("b.json", "0"),
            ("b.json", "1"),
        ]
        assert [json.loads(answer)["label"] for *_, answer in found] == [0, 2, 0]
        with pytest.raises(RuntimeError, match=r"c\.json: .*features"):
            score.run([str(tmp_path / "c.json")])
    finally:
        score.stop()
