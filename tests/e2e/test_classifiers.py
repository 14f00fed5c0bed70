"""A classifier as its exporter writes it by default, served over every API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from cohort.rpc import inference_pb2 as messages
from tests import onnx_models
from tests.e2e.processes import Cohort, cohort, free_port, run_command
from tests.rpc.client import PATH
from tests.waiting import PATIENCE

ROWS = [[0.5, 0.25], [-1.0, 2.0]]
CLASSES = ["cat", "dog", "eel"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier, and a model whose one output no request can carry."""
    made = tmp_path_factory.mktemp("classifiers")
    onnx_models.save(onnx_models.scores_by_class(labels=1), made / "models/pets/1/model.onnx")
    onnx_models.save(onnx_models.sequence_and_tensor(), made / "models/parts/1/model.onnx")
    return made


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Cohort]:
    """It serves both."""
    with cohort(folder / "models", folder, grpc_port=free_port()) as started:
        yield started


def test_probabilities_arrive(server: Cohort) -> None:
    """They have a column for each class, in the order that `/models` names."""
    described = httpx.get(f"{server.url}/models/pets").json()["versions"][0]
    assert described["batching"]["on"], described["batching"]["reason"]
    label, scores = described["outputs"]
    assert (scores["datatype"], scores["classes"]) == ("FP32", CLASSES)
    assert "classes" not in label
    asked = {"input": ROWS}
    found = httpx.post(f"{server.url}/models/pets/predict", json=asked).json()["prediction"]
    assert [len(row) for row in found["scores"]] == [3, 3]
    assert [sum(row) for row in found["scores"]] == pytest.approx([1, 1])
    best = [CLASSES[row.index(max(row))] for row in found["scores"]]
    assert found["label"] == best
    rows = httpx.post(f"{server.url}/v1/models/pets:predict", json={"instances": ROWS}).json()
    assert [row["scores"] for row in rows["predictions"]] == found["scores"]


def test_the_classes_are_in_metadata(server: Cohort) -> None:
    """REST, gRPC and the OpenAPI document have them; classifications name them."""
    over_rest = httpx.get(f"{server.url}/v2/models/pets").json()
    with grpc.insecure_channel(server.grpc) as channel:
        ask: Any = channel.unary_unary(
            f"{PATH}/ModelMetadata",
            request_serializer=messages.ModelMetadataRequest.SerializeToString,
            response_deserializer=messages.ModelMetadataResponse.FromString,
        )
        over_grpc = ask(messages.ModelMetadataRequest(name="pets"), timeout=PATIENCE)
    assert dict(over_grpc.properties) == over_rest["properties"]
    assert json.loads(over_rest["properties"]["classes"]) == CLASSES
    document = json.dumps(httpx.get(f"{server.url}/openapi.json").json())
    assert "a column for each class: cat, dog, eel" in document
    wanted = {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 2], "data": ROWS}],
        "outputs": [{"name": "scores", "parameters": {"classification": 1}}],
    }
    best = httpx.post(f"{server.url}/v2/models/pets/infer", json=wanted).json()["outputs"][0]
    assert [one.split(":")[2] in CLASSES for one in best["data"]] == [True, True]


def test_what_cannot_be_sent_is_named(server: Cohort, folder: Path) -> None:
    """The log at load names it, and so does `cohort check`."""
    lines = [json.loads(line) for line in server.logged.splitlines() if line.startswith("{")]
    (line,) = [line for line in lines if line["event"].startswith("outputs cannot be sent")]
    assert (line["model"], line["outputs"]) == ("parts", {"rows": "seq(tensor(float))"})
    checked = run_command("check", "--models", folder / "models")
    said = "parts/1: output 'rows' is omitted: seq(tensor(float)) cannot be sent"
    assert said in checked.stdout, checked.stdout + checked.stderr
    assert checked.returncode == 0
