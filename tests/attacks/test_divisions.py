"""The least whole number divided by -1, which the processor answers by ending the process."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import httpx
import numpy as np
import pytest

from cohort.rpc import inference_pb2 as messages
from tests import onnx_models
from tests.e2e.processes import Cohort, cohort, free_port
from tests.rpc.client import PATH, arrays_of, raw_request
from tests.waiting import PATIENCE

OTHERS = ['/models/plain/predict={"inputs": {"x": [[1, 2, 3, 4]]}}']
LEAST = -(2**63)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    folder = tmp_path_factory.mktemp("divisions")
    for name, model in {
        "share": onnx_models.divide(),
        "hidden": onnx_models.divide(function=True),
        "plain": onnx_models.mlp(),
    }.items():
        onnx_models.save(model, folder / "models" / name / "1" / "model.onnx")
    models = folder / "models"
    with cohort(models, folder, inspection_seconds=60, grpc_port=free_port()) as started:
        yield started


@pytest.mark.parametrize(
    ("path", "body", "answer"),
    [
        (
            "/models/share/predict",
            {"inputs": {"a": [LEAST, 7], "b": [-1, -1]}},
            {"outputs": {"y": [LEAST, -7]}},
        ),
        (
            "/v1/models/share:predict",
            {"instances": [{"a": LEAST, "b": -1}]},
            {"predictions": [LEAST]},
        ),
        (
            "/v2/models/share/infer",
            {
                "inputs": [
                    {"name": "a", "datatype": "INT64", "shape": [1], "data": [LEAST]},
                    {"name": "b", "datatype": "INT64", "shape": [1], "data": [-1]},
                ]
            },
            {"outputs": [{"name": "y", "datatype": "INT64", "shape": [1], "data": [LEAST]}]},
        ),
    ],
)
def test_it_is_answered(
    server: Cohort, path: str, body: dict[str, object], answer: dict[str, object]
) -> None:
    """The answer over HTTP is that of 64-bit arithmetic."""
    found = httpx.post(server.url + path, json=body, timeout=PATIENCE).json()
    assert {key: found[key] for key in answer} == answer


def test_it_is_answered_over_grpc(server: Cohort) -> None:
    """gRPC gives the same answer."""
    request = raw_request("share", {"a": np.array([LEAST]), "b": np.array([-1])})
    with grpc.insecure_channel(server.grpc) as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes]
        call = channel.unary_unary(f"{PATH}/ModelInfer")
        answer = call(request.SerializeToString(), timeout=PATIENCE)
    assert arrays_of(messages.ModelInferResponse.FromString(answer))["y"].tolist() == [LEAST]


def test_a_division_by_zero_is_the_callers(server: Cohort) -> None:
    """It is 400 over HTTP and INVALID_ARGUMENT over gRPC, and is not a failure of the version."""
    body = {"inputs": {"a": [7], "b": [0]}}
    answer = httpx.post(f"{server.url}/models/share/predict", json=body, timeout=PATIENCE)
    assert answer.status_code == 400, answer.text
    request = raw_request("share", {"a": np.array([7]), "b": np.array([0])})
    with grpc.insecure_channel(server.grpc) as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes]
        call = channel.unary_unary(f"{PATH}/ModelInfer")
        with pytest.raises(grpc.RpcError) as raised:
            call(request.SerializeToString(), timeout=PATIENCE)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_model_that_cannot_be_made_safe_is_named(server: Cohort) -> None:
    """The model is not served, and its reason names the signal that would end the process."""
    body = {"inputs": {"a": [LEAST], "b": [-1]}}
    answer = httpx.post(f"{server.url}/models/hidden/predict", json=body, timeout=PATIENCE)
    assert answer.status_code == 503
    assert "SIGFPE" in answer.text
