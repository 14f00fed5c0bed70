"""Pipelines in a real process: every API, readiness, metrics, and `cohort check`."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.e2e.processes import COMMAND, Cohort, cohort, free_port
from tests.e2e.scrape import Scrape
from tests.onnx_models import save
from tests.pipelines.graphs import affine
from tests.rpc.client import connected
from tests.waiting import wait_until

CASCADE = """
inputs: {x: {}}
steps:
  small: {model: small, inputs: {x: x}}
  large: {model: large, inputs: {x: x}, when: max(small.y) < 10}
outputs:
  y: {from: [large.y, small.y]}
"""
ADMIN = {"authorization": "Bearer secret"}
ROWS = [[1.0] * 4, [20.0] * 4]
WANTED = [[100.0] * 4, [20.0] * 4]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pipelines")
    save(affine(1), folder / "models/small/1/model.onnx")
    save(affine(100), folder / "models/large/1/model.onnx")
    out = "{from: [large.y, small.y]"
    for name, text in {
        "labelled": CASCADE.replace(out, out + ", labels: [a, b, c, d], top: 1"),
        "mislabelled": CASCADE.replace(out, out + ", labels: [a, b, c]"),
        "cascade": CASCADE,
        "wrong": CASCADE.replace("model: large", "model: larg"),
    }.items():
        (folder / "models" / name).mkdir()
        (folder / "models" / name / "pipeline.yaml").write_text(text)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Cohort]:
    options: dict[str, Any] = {"grpc_port": free_port(), "admin_token": "secret"}
    with cohort(folder / "models", folder, **options) as server:
        yield server


def predict(server: Cohort, model: str = "cascade") -> httpx.Response:
    return httpx.post(f"{server.url}/models/{model}/predict", json={"inputs": {"x": ROWS}})


def test_every_api_answers(server: Cohort) -> None:
    """They answer as for any other model."""
    answer = httpx.post(f"{server.url}/predict", json={"model": "cascade", "inputs": {"x": ROWS}})
    assert answer.json()["outputs"] == {"y": WANTED}
    assert answer.json()["version"] == "1"
    assert predict(server).json()["outputs"] == {"y": WANTED}
    v1 = httpx.post(f"{server.url}/v1/models/cascade:predict", json={"instances": ROWS})
    assert v1.json()["predictions"] == WANTED
    tensor = {"name": "x", "shape": [2, 4], "datatype": "FP32", "data": ROWS}
    v2 = httpx.post(f"{server.url}/v2/models/cascade/infer", json={"inputs": [tensor]})
    assert v2.json()["outputs"][0]["data"] == np.ravel(WANTED).tolist()
    called = httpx.post(f"{server.url}/invocations?model=cascade", json={"inputs": ROWS})
    assert called.json()["predictions"] == WANTED, called.text


async def test_grpc_answers(server: Cohort) -> None:
    """The answer equals that of REST."""
    async with connected(server.grpc) as client:
        answer = await client.infer("cascade", {"x": np.array(ROWS, np.float32)})
    assert answer["y"].tolist() == WANTED


def test_a_mistake_says_its_step(server: Cohort) -> None:
    """Callers and operators get the step's error; readiness does not depend on it."""
    reason = server.get("/models/wrong").json()["versions"][0]["reason"]
    assert reason == "step 'large': model 'larg' not found; did you mean 'large'?"
    refused = predict(server, "wrong")
    assert refused.status_code == 503
    assert reason in refused.json()["error"]
    assert server.get("/health/ready").status_code == 200


def test_outputs_and_inputs_take_what_those_of_models_do(server: Cohort) -> None:
    """Labels are one such setting; a mistake is reported with its place in the file."""
    labels = predict(server, "labelled").json()["labels"]
    assert [[one["label"] for one in row] for row in labels] == [["a"], ["a"]]
    reason = server.get("/models/mislabelled").json()["versions"][0]["reason"]
    assert reason.startswith("mislabelled/pipeline.yaml: outputs.y.labels: 3 labels")


def test_models_metrics_and_openapi_know_it(server: Cohort) -> None:
    """Its steps are described and counted, its tensors are in the document of the API."""
    predict(server)
    described = server.get("/models/cascade").json()["versions"][0]
    assert [step["name"] for step in described["pipeline"]["steps"]] == ["small", "large"]
    assert described["inputs"][0]["shape"] == ["N", 4]
    samples = Scrape(server.url).samples
    steps = {one.labels["step"] for one in samples if one.name == "model_step_total"}
    assert steps == {"small", "large"}
    counted = {one.labels["model"] for one in samples if one.name == "model_inference_total"}
    assert counted >= {"cascade", "small", "large"}
    assert "cascade" in server.get("/openapi.json").text
    assert server.get("/v2/models/cascade").json()["inputs"][0]["shape"] == [-1, 4]
    assert "cascade" in [one["name"] for one in server.get("/models").json()["models"]]


def test_readiness_follows_the_models(server: Cohort) -> None:
    """A model that is taken out takes the pipeline out, and brings it back."""
    ready = f"{server.url}/v2/models/cascade/ready"
    assert httpx.get(ready).status_code == 200
    gone = httpx.post(f"{server.url}/admin/models/large/unload", headers=ADMIN)
    assert gone.status_code < 300, gone.text
    assert httpx.get(ready).status_code == 503
    refused = predict(server)
    assert refused.status_code == 503
    assert "step 'large': model 'large' is unloaded" in refused.json()["error"]
    assert server.get("/health/ready").status_code == 200
    back = httpx.post(f"{server.url}/admin/models/large/load", headers=ADMIN)
    assert back.status_code < 300, back.text
    assert httpx.get(ready).status_code == 200
    assert predict(server).json()["outputs"] == {"y": WANTED}


def test_check_says_what_is_wrong(folder: Path) -> None:
    """The line begins with the file; `--no-open` prints the same."""
    for options in ([], ["--no-open"]):
        done = subprocess.run(
            [*COMMAND, "check", str(folder / "models"), *options],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        lines = done.stdout.splitlines()
        wrong = "wrong/pipeline.yaml: step 'large': model 'larg' not found; did you mean 'large'?"
        assert wrong in lines, done.stdout
        assert done.returncode == 1
        assert not any(line.startswith("cascade/") for line in lines)


def test_versions_are_rolled_out_and_shadowed(tmp_path: Path) -> None:
    """The whole pipeline has a variant, and its requests are copied to another version."""
    save(affine(1), tmp_path / "models/small/1/model.onnx")
    save(affine(100), tmp_path / "models/large/1/model.onnx")
    for version, text in {1: CASCADE, 2: CASCADE.replace("< 10", "< 1000")}.items():
        path = tmp_path / f"models/cascade/{version}/pipeline.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(text)
    (tmp_path / "rollouts.yaml").write_text(
        "cascade: {variants: {old: {version: 1, weight: 1}, new: {version: 2, weight: 0}},"
        " shadow: {version: 2, sample: 1}}"
    )
    with cohort(tmp_path / "models", tmp_path, rollouts=tmp_path / "rollouts.yaml") as server:
        assert predict(server).json()["variant"] == "old"
        new = httpx.post(
            f"{server.url}/models/cascade/versions/2/predict", json={"inputs": {"x": ROWS}}
        )
        assert new.json()["outputs"] == {"y": [[100.0] * 4, [2000.0] * 4]}

        def compared() -> bool:
            predict(server)
            found = [
                one
                for one in Scrape(server.url).samples
                if one.name == "shadow_max_abs_difference_sum" and one.labels["version"] == "2"
            ]
            return any(one.value >= 1980 for one in found)

        wait_until(compared)
