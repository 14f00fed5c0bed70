"""Weights that are also inputs: callers may leave them out, or set them, over every API."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tritonclient.grpc import InferenceServerClient, InferInput

from cohort.session import read_signature
from tests import onnx_models
from tests.e2e.processes import Cohort, cohort, free_port
from tests.waiting import PATIENCE

X = [[1.0, 2.0, 3.0]]
TWICE = [[2.0, 4.0, 6.0]]
FIVE = [[5.0, 10.0, 15.0]]
MANY = 33
FACTOR = {"name": "factor", "datatype": "FP32", "shape": []}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """A factor that may be set; one with weights among its inputs; one from before IR 4."""
    folder = tmp_path_factory.mktemp("optional")
    for name, model in {
        "scaled": onnx_models.with_defaults(),
        "weighted": onnx_models.with_defaults(optional=MANY),
        "old": onnx_models.with_defaults(ir_version=3),
    }.items():
        onnx_models.save(model, folder / "models" / name / "1/model.onnx")
    with cohort(folder / "models", folder, grpc_port=free_port()) as started:
        yield started


def post(server: Cohort, path: str, body: object) -> httpx.Response:
    return httpx.post(server.url + path, json=body, timeout=PATIENCE)


def over_v2(server: Cohort, **optional: float) -> httpx.Response:
    """The response over V2, with inputs without dimensions set."""
    inputs = [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": X}]
    inputs += [
        {"name": name, "datatype": "FP32", "shape": [], "data": [value]}
        for name, value in optional.items()
    ]
    return post(server, "/v2/models/scaled/infer", {"inputs": inputs})


def test_they_may_be_left_out_or_set(server: Cohort) -> None:
    """Each REST API accepts them by name; the simple form still works with the one input."""
    simple, named = {"input": X}, {"inputs": {"x": X}}
    set_ = {"inputs": {"x": X, "factor": 5}}
    for body, values in ((simple, TWICE), (named, TWICE), (set_, FIVE)):
        answer = post(server, "/models/scaled/predict", body).json()
        assert answer.get("prediction", answer.get("outputs", {}).get("y")) == values
    for body, values in ((named, TWICE), (set_, FIVE), ({"inputs": X}, TWICE)):
        assert post(server, "/v1/models/scaled:predict", body).json() == {"outputs": values}
    for body, values in ((named, TWICE), (set_, FIVE), ({"instances": X}, TWICE)):
        answer = post(server, "/invocations?model=scaled", body).json()
        assert answer == {"predictions": values}
    assert over_v2(server).json()["outputs"][0]["data"] == TWICE[0]
    assert over_v2(server, factor=5).json()["outputs"][0]["data"] == FIVE[0]


def test_they_may_be_set_over_grpc(server: Cohort) -> None:
    """Triton's client sets them."""
    x, factor = InferInput("x", [1, 3], "FP32"), InferInput("factor", [], "FP32")
    x.set_data_from_numpy(np.array(X, "f4"))
    factor.set_data_from_numpy(np.array(5, "f4"))
    with InferenceServerClient(server.grpc) as client:
        assert client.infer("scaled", [x]).as_numpy("y").tolist() == TWICE
        assert client.infer("scaled", [x, factor]).as_numpy("y").tolist() == FIVE
        described = client.get_model_config("scaled").config.input
        assert [(one.name, one.optional) for one in described] == [("x", False), ("factor", True)]


def test_each_caller_gets_its_own(server: Cohort) -> None:
    """Simultaneous requests with and without them do not run with another's value."""

    def ask(number: int) -> bool:
        inputs: dict[str, Any] = {"x": X} | ({"factor": number} if number % 2 else {})
        factor = number if number % 2 else 2
        answer = client.post("/models/scaled/predict", json={"inputs": inputs}).json()
        return bool(answer["outputs"]["y"] == [[value * factor for value in X[0]]])

    with httpx.Client(base_url=server.url, timeout=60) as client, ThreadPoolExecutor(16) as pool:
        assert all(pool.map(ask, range(200)))


def test_what_does_not_fit_is_refused(server: Cohort) -> None:
    """They are checked as any input: shape, datatype, name, and rows that they do not have."""
    for body, says in (
        ({"inputs": {"factor": 5}}, "input 'x' is missing"),
        ({"inputs": {"x": X, "factor": [5]}}, "input 'factor' must have shape [], got [1]"),
        ({"inputs": {"x": X, "facto": 5}}, "input 'facto' not found"),
        ({"inputs": {"x": X, "factor": "five"}}, "factor"),
        ({"instances": [{"x": X[0], "factor": 5}]}, "input 'factor' must have shape [], got [1]"),
    ):
        path = "/v1/models/scaled:predict" if "instances" in body else "/models/scaled/predict"
        answer = post(server, path, body)
        assert (answer.status_code, says in answer.json()["error"]) == (400, True), answer.text


def test_metadata_names_them(server: Cohort) -> None:
    """They are listed apart from the required inputs, and in the OpenAPI document."""
    served = httpx.get(f"{server.url}/models/scaled").json()["versions"][0]
    assert served["optional_inputs"] == [FACTOR | {"transportable": True}]
    metadata = httpx.get(f"{server.url}/v2/models/scaled").json()
    assert [one["name"] for one in metadata["inputs"]] == ["x"]
    assert metadata["optional_inputs"] == [FACTOR]
    document = httpx.get(f"{server.url}/openapi.json").text
    assert '"factor"' in document


@pytest.mark.parametrize("model", ["weighted", "old"])
def test_weights_are_no_optional_inputs(server: Cohort, model: str) -> None:
    """More than 32 are weights; before IR 4 none could be set. Requests go without them."""
    assert httpx.get(f"{server.url}/models/{model}").json()["versions"][0]["optional_inputs"] == []
    assert "optional_inputs" not in httpx.get(f"{server.url}/v2/models/{model}").json()
    assert post(server, f"/models/{model}/predict", {"input": X}).json()["prediction"] == TWICE
    answer = post(server, f"/models/{model}/predict", {"inputs": {"x": X, "factor": 5}})
    assert "input 'factor' not found" in answer.json()["error"]


def test_a_file_says_the_same_as_its_session(server: Cohort, tmp_path: Path) -> None:
    """`cohort rollout set` and held-back versions use that signature."""
    for optional, ir_version, names in ((3, 10, ["factor", "bias1", "bias2"]), (3, 3, [])):
        model = onnx_models.with_defaults(optional=optional, ir_version=ir_version)
        signature = read_signature(onnx_models.save(model, tmp_path / "model.onnx"))
        assert signature is not None
        assert [spec.name for spec in signature.inputs] == ["x"]
        assert [spec.name for spec in signature.optional] == names


def test_callers_of_an_optional_input_stay(tmp_path: Path) -> None:
    """A version without it misfits, as does one that needs what was optional; not the reverse."""
    defaults = read_signature(onnx_models.save(onnx_models.with_defaults(), tmp_path / "a.onnx"))
    model = onnx_models.with_defaults()
    del model.graph.initializer[:]
    needs = read_signature(onnx_models.save(model, tmp_path / "b.onnx"))
    model = onnx_models.with_defaults(ir_version=3)
    without = read_signature(onnx_models.save(model, tmp_path / "c.onnx"))
    assert defaults is not None
    assert needs is not None
    assert without is not None
    assert without.misfit(defaults, "version 1") == "it has no input 'factor', unlike version 1"
    assert needs.misfit(defaults, "version 1") == "it needs input 'factor', unlike version 1"
    assert defaults.misfit(needs, "version 1") == ""
    assert defaults.misfit(without, "version 1") == ""
