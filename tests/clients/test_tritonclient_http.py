"""Triton's own HTTP clients, from PyPI, against the real process."""

from __future__ import annotations

import asyncio
import gc
import json
import warnings
from collections.abc import AsyncIterator, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.http import aio as triton_aio
from tritonclient.utils import InferenceServerException

from tests.clients.conftest import TOKEN
from tests.e2e.processes import Cohort

ADMIN = {"Authorization": f"Bearer {TOKEN}"}
FLOWERS = np.array([[5.1, 3.5, 1.4, 0.2], [6.3, 3.3, 6.0, 2.5]], "f4")


@pytest.fixture
def client(server: Cohort) -> Iterator[Any]:
    """Triton's client, connected."""
    with InferenceServerClient(server.url.removeprefix("http://"), concurrency=4) as client:
        yield client


@pytest.fixture
async def aio(server: Cohort) -> AsyncIterator[Any]:
    """The same for asyncio. It leaves answers without a body unread, and aiohttp warns of that."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        async with triton_aio.InferenceServerClient(server.url.removeprefix("http://")) as client:
            yield client
        gc.collect()


def tensor(name: str, datatype: str, array: NDArray[Any], *, binary: bool = True) -> Any:
    """An input of Triton's client."""
    made = InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array, binary_data=binary)
    return made


def flowers(*, binary: bool = True) -> list[Any]:
    """What iris takes."""
    return [tensor("features", "FP32", FLOWERS, binary=binary)]


def test_the_server_says_what_it_is(client: Any) -> None:
    """Live, ready, its name and the extensions it has."""
    assert client.is_server_live()
    assert client.is_server_ready()
    told = client.get_server_metadata()
    assert told["name"] == "cohort"
    assert {"binary_tensor_data", "classification", "statistics"} <= set(told["extensions"])


def test_a_model_says_what_it_takes(client: Any) -> None:
    """Names, datatypes and shapes, open dimensions as -1; of one version, and all READY ones."""
    assert client.is_model_ready("iris")
    assert client.is_model_ready("digits", "2")
    assert not client.is_model_ready("nobody")
    assert not client.is_model_ready("digits", "9")
    metadata = client.get_model_metadata("iris")
    assert json.loads(metadata.pop("properties")["classes"]) == [
        "setosa",
        "versicolor",
        "virginica",
    ]
    assert metadata == {
        "name": "iris",
        "versions": ["1"],
        "platform": "onnxruntime_onnx",
        "inputs": [{"name": "features", "datatype": "FP32", "shape": [-1, 4]}],
        "outputs": [
            {"name": "label", "datatype": "INT64", "shape": [-1]},
            {"name": "probabilities", "datatype": "FP32", "shape": [-1, 3]},
        ],
    }
    assert client.get_model_metadata("digits")["versions"] == ["1", "2"]
    assert client.get_model_metadata("digits", "1")["versions"] == ["1"]


def test_a_model_says_how_it_is_set(client: Any) -> None:
    """It returns Triton's configuration: dimensions without the batch, if there is one."""
    batched = client.get_model_config("iris")
    assert batched["max_batch_size"] > 1
    features = {"name": "features", "data_type": "TYPE_FP32", "dims": [4]}
    assert batched["input"] == [features | {"format": "FORMAT_NONE"}]
    assert batched["dynamic_batching"] == {"max_queue_delay_microseconds": 0}
    alone = client.get_model_config("scalar", "1")
    assert alone["max_batch_size"] == 0
    assert (alone["input"][0]["dims"], alone["input"][0]["reshape"]) == ([1], {"shape": []})
    assert client.get_model_config("digits")["input"][0]["format"] == "FORMAT_NCHW"
    strings = client.get_model_config("strings")
    assert strings["input"][0]["data_type"] == "TYPE_STRING"


@pytest.mark.parametrize("sent", [True, False], ids=["binary in", "JSON in"])
@pytest.mark.parametrize("answered", [True, False], ids=["binary out", "JSON out"])
def test_binary_and_json_give_the_same(client: Any, sent: bool, answered: bool) -> None:
    """Both forms work for inputs and outputs, and the request's id is returned."""
    outputs = [
        InferRequestedOutput(name, binary_data=answered) for name in ("probabilities", "label")
    ]
    result = client.infer("iris", flowers(binary=sent), outputs=outputs, request_id="a-1")
    told = result.get_response()
    assert (told["id"], told["model_name"], told["model_version"]) == ("a-1", "iris", "1")
    assert [one["name"] for one in told["outputs"]] == ["probabilities", "label"]
    assert ("data" in told["outputs"][0]) is not answered
    assert result.as_numpy("label").tolist() == [0, 2]
    assert result.as_numpy("probabilities").shape == (2, 3)


def test_outputs_may_travel_differently(client: Any) -> None:
    """One in JSON, one as bytes behind it, of a version that was asked for."""
    outputs = [
        InferRequestedOutput("sum", binary_data=False),
        InferRequestedOutput("difference", binary_data=True),
    ]
    a, b = np.array([[1, 2]], "f4"), np.array([[10, 20]], "f4")
    inputs = [tensor("b", "FP32", b), tensor("a", "FP32", a, binary=False)]
    result = client.infer("pair", inputs, model_version="1", outputs=outputs)
    assert result.as_numpy("sum").tolist() == [[11, 22]]
    assert result.as_numpy("difference").tolist() == [[-9, -18]]


@pytest.mark.parametrize("binary", [True, False])
def test_texts_go_both_ways(client: Any, binary: bool) -> None:
    """BYTES may have characters outside ASCII or be empty."""
    texts = np.array([["cat"], ["žluť 🐈"], [""]], np.object_)
    outputs = [InferRequestedOutput(name, binary_data=binary) for name in ("same", "code")]
    result = client.infer(
        "strings", [tensor("text", "BYTES", texts, binary=binary)], outputs=outputs
    )
    got = [one.decode() if binary else one for one in result.as_numpy("same").ravel()]
    assert got == ["cat", "žluť 🐈", ""]
    assert result.as_numpy("code").tolist() == [[1], [-1], [-1]]


@pytest.mark.parametrize(
    ("model", "datatype", "dtype"),
    [
        ("fp16", "FP16", np.float16),
        ("bf16", "BF16", ml_dtypes.bfloat16),
        ("bool", "BOOL", np.bool_),
    ],
)
def test_small_datatypes_go_both_ways(client: Any, model: str, datatype: str, dtype: Any) -> None:
    """They are the same bit for bit in the binary form."""
    values = np.array([[1.5, 0.0, 3.25]]).astype(dtype)
    result = client.infer(model, [tensor("x", datatype, values)])
    assert result.as_numpy("y").dtype == values.dtype
    assert result.as_numpy("y").tobytes() == values.tobytes()


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (1, 1)])
def test_empty_tensors_go_both_ways(client: Any, shape: tuple[int, int]) -> None:
    """A dimension of no length is a shape like any other."""
    result = client.infer("large", [tensor("x", "FP32", np.zeros(shape, "f4"))])
    assert result.as_numpy("y").shape == shape


def test_a_scalar_goes_both_ways(client: Any) -> None:
    """Shape [] is one element."""
    result = client.infer("scalar", [tensor("x", "FP32", np.array(4, "f4"))])
    assert result.as_numpy("y").shape == ()
    assert result.as_numpy("y") == 8


def test_a_model_without_inputs_answers(client: Any) -> None:
    """An empty list of inputs is right for it."""
    assert client.infer("no_inputs", []).as_numpy("y").tolist() == [1, 2, 3]


def test_a_sequence_is_named_and_refused(client: Any) -> None:
    """Metadata names its type; a request for it is the caller's mistake."""
    assert client.get_model_metadata("sequence")["outputs"][0]["datatype"] == "seq(tensor(float))"
    with pytest.raises(InferenceServerException) as refused:
        client.infer("sequence", [tensor("x", "FP32", np.zeros((1, 3), "f4"))])
    assert refused.value.status() == "400"
    assert "rows" in refused.value.message()


def test_requests_in_flight_together_get_their_own_answers(client: Any) -> None:
    """Many calls of async_infer run at once."""
    pending = []
    for number in range(32):
        row = np.full((1, 3), number, "f4")
        pending.append(client.async_infer("named", [tensor("x", "FP32", row)]))
    for number, one in enumerate(pending):
        assert one.get_result().as_numpy("y").tolist() == [[number] * 3]


@pytest.mark.parametrize("request_by", [None, "gzip", "deflate"])
@pytest.mark.parametrize("response_by", [None, "gzip", "deflate"])
def test_bodies_may_be_compressed(
    client: Any, request_by: str | None, response_by: str | None
) -> None:
    """All pairs of codings work in both directions, with JSON and binary data."""
    big = np.arange(6000, dtype="f4").reshape(2, 3000)
    outputs = [InferRequestedOutput("y", binary_data=request_by == "gzip")]
    result = client.infer(
        "large",
        [tensor("x", "FP32", big, binary=response_by != "gzip")],
        outputs=outputs,
        request_compression_algorithm=request_by,
        response_compression_algorithm=response_by,
    )
    assert (result.as_numpy("y") == big).all()


async def test_the_asyncio_client_asks_and_is_answered(aio: Any) -> None:
    """It gets metadata and inference, compressed as well, many at once."""
    assert await aio.is_server_ready()
    assert (await aio.get_model_metadata("iris"))["name"] == "iris"
    results = await asyncio.gather(
        *(aio.infer("iris", flowers(), request_compression_algorithm="gzip") for _ in range(16))
    )
    assert all(one.as_numpy("label").tolist() == [0, 2] for one in results)
    big = np.arange(6000, dtype="f4").reshape(1, 6000)
    result = await aio.infer(
        "large", [tensor("x", "FP32", big)], response_compression_algorithm="deflate"
    )
    assert (result.as_numpy("y") == big).all()


@pytest.mark.parametrize(
    ("model", "version", "inputs", "status", "says"),
    [
        ("irs", "", flowers(), "404", "did you mean 'iris'"),
        ("iris", "7", flowers(), "404", "version '7' of model 'iris' not found"),
        ("iris", "", [], "400", "input 'features' is missing"),
        ("iris", "", [tensor("feature", "FP32", FLOWERS)], "400", "did you mean 'features'"),
        ("iris", "", [tensor("features", "FP64", FLOWERS.astype("f8"))], "400", "'FP64'"),
        ("iris", "", [tensor("features", "FP32", FLOWERS[:, :3])], "400", "[N, 4]"),
        ("gather", "", [tensor("index", "INT64", np.array([99]))], "400", "bounds"),
    ],
)
def test_mistakes_are_told_in_a_sentence(
    client: Any, model: str, version: str, inputs: list[Any], status: str, says: str
) -> None:
    """The client raises with our status and our words, and stays usable."""
    with pytest.raises(InferenceServerException) as refused:
        client.infer(model, inputs, model_version=version)
    assert refused.value.status() == status
    assert says in refused.value.message()
    assert client.infer("iris", flowers()).as_numpy("label").tolist() == [0, 2]


def test_a_timeout_is_in_microseconds(client: Any) -> None:
    """In Triton's unit a thousandth of a second is too little, and ten minutes are enough."""
    inputs = [tensor("x", "FP32", np.zeros((1, 4), "f4"))]
    with pytest.raises(InferenceServerException, match="no response within 1 ms") as late:
        client.infer("slow", inputs, timeout=1000)
    assert late.value.status() == "504"
    assert client.infer("slow", inputs, timeout=600_000_000).as_numpy("y").shape == (1, 4)


def test_the_best_classes_are_named(client: Any) -> None:
    """Score, index, and the label where the model's metadata has one; best first."""
    outputs = [InferRequestedOutput("y", class_count=2)]
    scores = np.array([[0.5, 2.5, 1.0], [3.0, 1.0, 1.0]], "f4")
    result = client.infer("named", [tensor("x", "FP32", scores)], outputs=outputs)
    assert result.as_numpy("y").tolist() == [
        [b"2.5:1:versicolor", b"1.0:2:virginica"],
        [b"3.0:0:setosa", b"1.0:1:versicolor"],
    ]
    json_form = [InferRequestedOutput("y", class_count=9, binary_data=False)]
    result = client.infer("large", [tensor("x", "FP32", scores[:1])], outputs=json_form)
    assert result.as_numpy("y").tolist() == [["2.5:1", "1.0:2", "0.5:0"]]


def test_a_model_is_taken_out_and_brought_back(client: Any) -> None:
    """The index reports it, a request gets 503, the replica stays ready, and load undoes it."""
    client.unload_model("mlp", headers=ADMIN)
    index = {one["name"]: one for one in client.get_model_repository_index()}
    assert (index["mlp"]["state"], index["mlp"]["reason"]) == ("UNAVAILABLE", "unloaded")
    assert index["iris"]["state"] == "READY"
    assert not client.is_model_ready("mlp")
    assert client.is_server_ready()
    with pytest.raises(InferenceServerException) as refused:
        client.infer("mlp", [tensor("x", "FP32", np.zeros((1, 4), "f4"))])
    assert refused.value.status() == "503"
    assert "unloaded" in refused.value.message()
    client.load_model("mlp", headers=ADMIN)
    assert client.is_model_ready("mlp")
    assert (
        client.infer("mlp", [tensor("x", "FP32", np.zeros((1, 4), "f4"))]).as_numpy("y") is not None
    )


async def test_the_asyncio_client_takes_out_and_brings_back(aio: Any) -> None:
    """http.aio does the same."""
    await aio.unload_model("any_length", headers=ADMIN)
    assert not await aio.is_model_ready("any_length")
    await aio.load_model("any_length", headers=ADMIN)
    assert await aio.is_model_ready("any_length")


def test_loading_needs_the_token_and_the_repositorys_own_files(client: Any) -> None:
    """No token gets 401, a wrong one 403; a config in the request is refused."""
    for headers, status in (({}, "401"), ({"Authorization": "Bearer no"}, "403")):
        for call in (client.load_model, client.unload_model):
            with pytest.raises(InferenceServerException) as refused:
                call("iris", headers=headers)
            assert refused.value.status() == status
    with pytest.raises(InferenceServerException, match="config") as refused:
        client.load_model("iris", headers=ADMIN, config=json.dumps({"max_batch_size": 1}))
    assert refused.value.status() == "400"
    with pytest.raises(InferenceServerException) as refused:
        client.load_model("nobody", headers=ADMIN)
    assert refused.value.status() == "404"
    assert client.is_model_ready("iris")


def test_statistics_add_up(client: Any) -> None:
    """Requests, rows and runs since the start, by version; failures apart."""
    client.infer("named", [tensor("x", "FP32", np.zeros((3, 3), "f4"))])
    before = client.get_inference_statistics("named", "1")["model_stats"][0]
    client.infer("named", [tensor("x", "FP32", np.zeros((5, 3), "f4"))])
    with pytest.raises(InferenceServerException):
        client.infer("named", [tensor("x", "FP32", np.zeros((5, 2), "f4"))])
    (after,) = client.get_inference_statistics("named")["model_stats"]
    assert after["inference_count"] - before["inference_count"] == 5
    assert after["execution_count"] - before["execution_count"] == 1
    assert after["last_inference"] >= before["last_inference"] > 0

    def grown(part: str) -> int:
        counts = [told["inference_stats"][part]["count"] for told in (before, after)]
        return int(counts[1] - counts[0])

    assert (grown("success"), grown("fail"), grown("compute_infer")) == (1, 1, 1)
    assert after["inference_stats"]["success"]["ns"] > before["inference_stats"]["success"]["ns"]
    assert {one["batch_size"] for one in after["batch_stats"]} >= {3, 5}
    everyone = client.get_inference_statistics()["model_stats"]
    assert {one["name"] for one in everyone} >= {"iris", "named", "slow"}
    with pytest.raises(InferenceServerException):
        client.get_inference_statistics("nobody")
