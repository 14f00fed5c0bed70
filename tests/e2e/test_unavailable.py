"""A model that cannot be served: callers who may see it get the reason, over every protocol."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests import onnx_models
from tests.e2e.processes import Cohort, cohort, free_port

REASON = "model.onnx is a Python pickle"
KEYS = {"seer": ["broken", "good"], "other": ["good"]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """A model that serves next to a pickle, and a rollout whose baseline is one."""
    folder = tmp_path_factory.mktemp("unavailable")
    models = folder / "models"
    onnx_models.save(onnx_models.mlp(), models / "good" / "1" / "model.onnx")
    (models / "broken" / "1").mkdir(parents=True)
    (models / "broken" / "1" / "model.onnx").write_bytes(b"\x80\x04\x95 a pickle")
    keys = folder / "keys.yaml"
    keys.write_text(
        "\n".join(
            f"- {{name: {name}, sha256: {sha256(name.encode()).hexdigest()}, models: {models}}}"
            for name, models in KEYS.items()
        )
    )
    with cohort(models, folder, grpc_port=free_port(), api_keys=keys) as started:
        yield started


def ask(server: Cohort, method: str, path: str, body: Any, key: str = "seer") -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.request(method, server.url + path, json=body, headers=headers, timeout=60)


SIMPLE = {"input": [[1, 2, 3, 4]]}
V2 = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/models/broken/predict", SIMPLE),
        ("POST", "/models/broken/versions/1/predict", SIMPLE),
        ("POST", "/v2/models/broken/infer", V2),
        ("GET", "/v2/models/broken", None),
        ("GET", "/v2/models/broken/ready", None),
        ("POST", "/v1/models/broken:predict", {"instances": [[1, 2, 3, 4]]}),
        ("GET", "/v1/models/broken/metadata", None),
    ],
)
def test_it_says_why_and_not_to_try_again(
    server: Cohort, method: str, path: str, body: Any
) -> None:
    """Only other files would help, so there is no Retry-After."""
    answer = ask(server, method, path, body)
    assert (answer.status_code, answer.json()["code"]) == (503, "NotReady")
    assert f"version 1 is UNAVAILABLE: {REASON}" in answer.json()["error"]
    assert "retry-after" not in answer.headers


def test_over_grpc_as_well(server: Cohort) -> None:
    """The trailing metadata has no pushback."""
    tensor = service_pb2.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[1, 4])
    request = service_pb2.ModelInferRequest(
        model_name="broken",
        inputs=[tensor],
        raw_input_contents=[np.zeros((1, 4), "f4").tobytes()],
    )
    with grpc.insecure_channel(server.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(request, metadata=[("authorization", "Bearer seer")])
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert f"version 1 is UNAVAILABLE: {REASON}" in str(caught.value.details())
    assert "grpc-retry-pushback-ms" not in [one.key for one in caught.value.trailing_metadata()]


def test_who_may_not_see_the_model_learns_nothing(server: Cohort) -> None:
    """It is as one that does not exist."""
    answer = ask(server, "POST", "/models/broken/predict", SIMPLE, key="other")
    assert (answer.status_code, answer.json()["code"]) == (404, "ModelNotFound")
    assert "pickle" not in answer.text
