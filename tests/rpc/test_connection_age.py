"""Old connections end, so that new replicas behind a balancer get calls."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton

from cohort.rpc.inference_pb2 import ModelInferRequest, ModelInferResponse
from tests import onnx_models
from tests.e2e.processes import Cohort, cohort, free_port
from tests.waiting import PATIENCE

INFER = "/inference.GRPCInferenceService/ModelInfer"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Cohort]:
    """One whose connections are old after a second, and whose streams have no grace."""
    (tmp_path / "models/m/1").mkdir(parents=True)
    onnx_models.save(onnx_models.times(2.0), tmp_path / "models/m/1/model.onnx")
    with cohort(
        tmp_path / "models",
        tmp_path,
        grpc_port=free_port(),
        grpc_max_connection_age_seconds=1,
        drain_seconds=0,
    ) as started:
        yield started


def tensor() -> triton.InferInput:
    sent = triton.InferInput("x", [1, 3], "FP32")
    sent.set_data_from_numpy(np.ones((1, 3), np.float32))
    return sent


def request() -> ModelInferRequest:
    sent = ModelInferRequest(model_name="m")
    one = sent.inputs.add(name="x", datatype="FP32", shape=[1, 3])
    one.contents.fp32_contents.extend([1.0, 2.0, 3.0])
    return sent


def test_a_client_connects_again_and_loses_no_call(server: Cohort) -> None:
    """It is asked to by GOAWAY; every call is answered."""
    states: list[grpc.ChannelConnectivity] = []
    with grpc.insecure_channel(server.grpc) as channel:
        channel.subscribe(states.append)
        infer = channel.unary_unary(
            INFER, ModelInferRequest.SerializeToString, ModelInferResponse.FromString
        )
        while states.count(grpc.ChannelConnectivity.READY) < 2:
            assert infer(request(), timeout=PATIENCE).model_name == "m"


def test_a_stream_is_answered_and_then_ended(server: Cohort) -> None:
    """With UNAVAILABLE, which clients take as: call again."""
    heard: SimpleQueue[tuple[object, grpc.RpcError | None]] = SimpleQueue()
    with triton.InferenceServerClient(server.grpc) as client:
        client.start_stream(lambda result, error: heard.put((result, error)))
        client.async_stream_infer("m", [tensor()])
        assert heard.get(timeout=PATIENCE)[1] is None
        _, error = heard.get(timeout=PATIENCE)
    assert "maximum age" in str(error)
