"""Triton's own gRPC clients, from PyPI, against the real process."""

from __future__ import annotations

import queue
from collections.abc import AsyncIterator, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from tritonclient.grpc import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.grpc import aio as triton_aio
from tritonclient.utils import InferenceServerException

from tests.clients.conftest import TOKEN
from tests.e2e.processes import Cohort
from tests.waiting import PATIENCE

ADMIN = {"authorization": f"Bearer {TOKEN}"}
FLOWERS = np.array([[5.1, 3.5, 1.4, 0.2], [6.3, 3.3, 6.0, 2.5]], "f4")


@pytest.fixture
def client(server: Cohort) -> Iterator[Any]:
    """Triton's client, connected."""
    with InferenceServerClient(server.grpc) as client:
        yield client


@pytest.fixture
async def aio(server: Cohort) -> AsyncIterator[Any]:
    """The same for asyncio."""
    async with triton_aio.InferenceServerClient(server.grpc) as client:
        yield client


def tensor(name: str, datatype: str, array: NDArray[Any]) -> Any:
    """An input of Triton's client."""
    made = InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


def flowers() -> list[Any]:
    """What iris takes."""
    return [tensor("features", "FP32", FLOWERS)]


def test_the_server_says_what_it_is(client: Any) -> None:
    """Live, ready, its name and the extensions it has."""
    assert client.is_server_live()
    assert client.is_server_ready()
    told = client.get_server_metadata()
    assert told.name == "cohort"
    assert {"classification", "model_repository", "statistics"} <= set(told.extensions)


def test_models_say_what_they_take_and_how_they_are_set(client: Any) -> None:
    """Metadata and configuration arrive as messages and as the JSON the client makes of them."""
    assert client.is_model_ready("digits", "1")
    assert not client.is_model_ready("nobody")
    assert list(client.get_model_metadata("digits").versions) == ["1", "2"]
    told = client.get_model_metadata("iris", as_json=True)
    assert told["inputs"] == [{"name": "features", "datatype": "FP32", "shape": ["-1", "4"]}]
    config = client.get_model_config("iris").config
    assert (config.backend, config.max_batch_size > 0) == ("onnxruntime", True)
    assert list(config.input[0].dims) == [4]
    ready = {one.name for one in client.get_model_repository_index().models if one.state == "READY"}
    assert {"iris", "digits", "mlp"} <= ready


def test_a_model_answers(client: Any) -> None:
    """The answer has the request's id, the version, and all or the chosen outputs."""
    result = client.infer("iris", flowers(), request_id="a1")
    response = result.get_response()
    assert (response.id, response.model_version) == ("a1", "1")
    assert result.as_numpy("label").tolist() == [0, 2]
    assert result.as_numpy("probabilities").shape == (2, 3)
    only = client.infer("iris", flowers(), outputs=[InferRequestedOutput("probabilities")])
    assert only.as_numpy("label") is None
    assert only.as_numpy("probabilities").tolist() == result.as_numpy("probabilities").tolist()


def test_several_inputs_and_outputs(client: Any) -> None:
    """Each goes where it belongs, in whatever order."""
    a, b = np.array([[5, 7]], "f4"), np.array([[1, 2]], "f4")
    result = client.infer("pair", [tensor("b", "FP32", b), tensor("a", "FP32", a)])
    assert result.as_numpy("sum").tolist() == [[6, 9]]
    assert result.as_numpy("difference").tolist() == [[4, 5]]


def test_texts_go_both_ways(client: Any) -> None:
    """BYTES may be in any script, empty or long."""
    texts = np.array([["cat"], ["dog"], [""], ["naïve 🐈" * 100]], np.object_)
    result = client.infer("strings", [tensor("text", "BYTES", texts)])
    assert [one.decode() for one in result.as_numpy("same").ravel()] == texts.ravel().tolist()
    assert result.as_numpy("code").ravel().tolist() == [1, 2, -1, -1]


@pytest.mark.parametrize(
    ("model", "datatype", "dtype"),
    [("fp16", "FP16", np.float16), ("bf16", "BF16", ml_dtypes.bfloat16)],
)
def test_small_floats_go_both_ways(client: Any, model: str, datatype: str, dtype: Any) -> None:
    """FP16 as numpy has it, BF16 as ml_dtypes does."""
    array = np.array([[1.5, -2, 0.25]], dtype)
    result = client.infer(model, [tensor("x", datatype, array)])
    assert result.as_numpy("y").tolist() == array.tolist()


def test_the_best_classes_are_named(client: Any) -> None:
    """`value:index:label`, the best first, as many as were asked for."""
    wanted = [InferRequestedOutput("y", class_count=2)]
    result = client.infer(
        "named", [tensor("x", "FP32", np.array([[1, 3, 2]], "f4"))], outputs=wanted
    )
    best = [one.decode().split(":") for one in result.as_numpy("y").ravel()]
    assert [(float(score), index, label) for score, index, label in best] == [
        (3, "1", "versicolor"),
        (2, "2", "virginica"),
    ]


@pytest.mark.parametrize("compression", ["gzip", "deflate"])
def test_messages_may_be_compressed(client: Any, compression: str) -> None:
    """The client uses gRPC's compression."""
    result = client.infer("iris", flowers(), compression_algorithm=compression)
    assert result.as_numpy("label").tolist() == [0, 2]


def test_mistakes_are_told_in_a_sentence(client: Any) -> None:
    """Each has the status that fits."""
    for model, inputs, status, word in (
        ("nobody", flowers(), "NOT_FOUND", "'nobody'"),
        ("iris", [], "INVALID_ARGUMENT", "'features'"),
        ("iris", [tensor("x", "FP32", FLOWERS)], "INVALID_ARGUMENT", "'x'"),
        ("iris", [tensor("features", "FP32", FLOWERS[:, :3])], "INVALID_ARGUMENT", "[N, 4]"),
        ("iris", [tensor("features", "INT64", FLOWERS.astype("i8"))], "INVALID_ARGUMENT", "FP32"),
    ):
        with pytest.raises(InferenceServerException) as caught:
            client.infer(model, inputs)
        assert caught.value.status() == f"StatusCode.{status}"
        assert word in caught.value.message()


def test_both_kinds_of_timeout_are_kept(client: Any) -> None:
    """`timeout` in microseconds is the server's, `client_timeout` in seconds the call's."""
    one = [tensor("x", "FP32", np.ones((1, 4), "f4"))]
    for limit in ({"timeout": 1000}, {"client_timeout": 0.01}):
        with pytest.raises(InferenceServerException) as caught:
            client.infer("slow", one, **limit)
        assert caught.value.status() == "StatusCode.DEADLINE_EXCEEDED"


def test_requests_in_flight_together_get_their_own_answers(client: Any) -> None:
    """`async_infer` calls back with each request's own numbers."""
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    for number in range(50):
        array = np.full((1, 3), number, "f4")
        client.async_infer(
            "named",
            [tensor("x", "FP32", array)],
            callback=lambda result, error: answers.put((result, error)),
            request_id=str(number),
        )
    for _ in range(50):
        result, error = answers.get(timeout=PATIENCE)
        assert error is None
        assert result.as_numpy("y").tolist() == [[int(result.get_response().id)] * 3]


def test_a_stream_outlives_a_bad_request(client: Any) -> None:
    """Answers come in order; a bad request gets an error, and the next one is served."""
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(callback=lambda result, error: answers.put((result, error)))
    for model in ("iris", "nobody", "iris"):
        client.async_stream_infer(model, flowers(), request_id=model)
    (first, fine), (_, error), (last, _) = (answers.get(timeout=PATIENCE) for _ in range(3))
    client.stop_stream()
    assert fine is None
    assert "'nobody'" in error.message()
    for result in (first, last):
        assert result.as_numpy("label").tolist() == [0, 2]
        assert result.get_response().parameters["triton_final_response"].bool_param


async def test_the_asyncio_client_asks_and_is_answered(aio: Any) -> None:
    """It handles calls, errors and streams."""
    assert await aio.is_server_ready()
    result = await aio.infer("iris", flowers())
    assert result.as_numpy("label").tolist() == [0, 2]
    with pytest.raises(InferenceServerException) as caught:
        await aio.infer("iris", [])
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"

    async def requests() -> AsyncIterator[dict[str, Any]]:
        for model in ("iris", "nobody", "iris"):
            yield {"model_name": model, "inputs": flowers()}

    answers = [answer async for answer in aio.stream_infer(requests())]
    assert [error is None for _, error in answers] == [True, False, True]


def test_a_model_is_taken_out_and_brought_back(client: Any) -> None:
    """Both need the token; a config in the request is refused."""
    with pytest.raises(InferenceServerException) as caught:
        client.unload_model("mlp")
    assert caught.value.status() == "StatusCode.UNAUTHENTICATED"
    client.unload_model("mlp", headers=ADMIN)
    assert not client.is_model_ready("mlp")
    with pytest.raises(InferenceServerException) as caught:
        client.infer("mlp", [tensor("x", "FP32", FLOWERS)])
    assert caught.value.status() == "StatusCode.UNAVAILABLE"
    client.load_model("mlp", headers=ADMIN)
    assert client.infer("mlp", [tensor("x", "FP32", FLOWERS)]).as_numpy("y").shape == (2, 3)
    with pytest.raises(InferenceServerException) as caught:
        client.load_model("mlp", headers=ADMIN, config="{}")
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"


def test_statistics_add_up(client: Any) -> None:
    """Rows, runs and answers grow by the numbers of the request."""

    def look() -> Any:
        return client.get_inference_statistics("iris").model_stats[0]

    before = look()
    client.infer("iris", flowers())
    after = look()
    assert after.inference_count - before.inference_count == len(FLOWERS)
    assert after.execution_count - before.execution_count == 1
    succeeded = after.inference_stats.success.count - before.inference_stats.success.count
    assert succeeded == 1
    assert after.last_inference > 0
