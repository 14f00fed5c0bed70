"""A request of eight bytes asks for millions of texts, and others are still answered."""

from __future__ import annotations

import json
from collections.abc import Iterator

import grpc
import httpx
import numpy as np
import pytest

from cohort.rpc import inference_pb2 as messages
from tests import onnx_models
from tests.attacks.asker import UNANSWERED
from tests.e2e.processes import Cohort, cohort, free_port
from tests.rpc.client import PATH, raw_request

OTHERS = ['/models/plain/predict={"inputs": {"x": [[1, 2, 3, 4]]}}']
MANY = 6_000_000

MORE_MEMORY = 400 << 20
"""ONNX Runtime keeps the places of the largest texts that a model gave, 32 bytes for each, for the
next ones."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    folder = tmp_path_factory.mktemp("texts")
    for name, model, config in (
        ("texts", onnx_models.texts_of(), {}),
        ("few", onnx_models.texts_of(), {"max_output_mb": 64}),
        ("plain", onnx_models.mlp(), {}),
    ):
        onnx_models.save(model, folder / "models" / name / "1" / "model.onnx")
        (folder / "models" / name / "config.yaml").write_text(json.dumps(config))
    with cohort(folder / "models", folder, watch_seconds=0, grpc_port=free_port()) as started:
        yield started


def post(server: Cohort, path: str, body: object) -> httpx.Response:
    return httpx.post(server.url + path, json=body, timeout=UNANSWERED)


def v2(*, binary: bool, count: int = MANY) -> dict[str, object]:
    tensor = {"name": "n", "datatype": "INT64", "shape": [1], "data": [count]}
    return {"inputs": [tensor], "parameters": {"binary_data_output": binary}}


@pytest.mark.parametrize("api", ["simple", "v1", "v2", "binary", "grpc"])
def test_they_are_answered(server: Cohort, api: str) -> None:
    """Every form of request is answered; the bystander checks that no other caller waits."""
    if api == "grpc":
        with grpc.insecure_channel(
            server.grpc, options=[("grpc.max_receive_message_length", -1)]
        ) as channel:
            call: grpc.UnaryUnaryMultiCallable[bytes, bytes]
            call = channel.unary_unary(f"{PATH}/ModelInfer")
            request = raw_request("texts", {"n": np.array([MANY])})
            answer = call(request.SerializeToString(), timeout=UNANSWERED)
        message = messages.ModelInferResponse.FromString(answer)
        assert message.raw_output_contents[0].count(b"\1\0\0\x007") == MANY
        return
    path, body = {
        "simple": ("/models/texts/predict", {"inputs": {"n": [MANY]}}),
        "v1": ("/v1/models/texts:predict", {"inputs": [MANY]}),
        "v2": ("/v2/models/texts/infer", v2(binary=False)),
        "binary": ("/v2/models/texts/infer", v2(binary=True)),
    }[api]
    found = post(server, path, body)
    assert found.status_code == 200, found.text[:200]
    if api == "binary":
        assert found.content.count(b"\1\0\0\x007") == MANY
    else:
        assert found.content.count(b'"7"') == MANY


@pytest.mark.parametrize("path", ["/models/few/predict", "/v2/models/few/infer"])
def test_more_than_a_request_gets_are_refused(server: Cohort, path: str) -> None:
    """Their number is checked before one of them is made."""
    count = MANY // 4
    body = v2(binary=True, count=count) if "v2" in path else {"inputs": {"n": [count]}}
    answer = post(server, path, body)
    assert answer.status_code == 400
    assert "max_output_mb" in answer.text
