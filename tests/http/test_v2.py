"""The Open Inference Protocol over REST, byte by byte, against the real process."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import zlib
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests import onnx_models
from tests.e2e.endless import endless_runs, in_progress
from tests.e2e.processes import Cohort, cohort
from tests.e2e.scrape import Scrape
from tests.examples import examples
from tests.waiting import PATIENCE, wait_until

TOKEN = "open-sesame"
ADMIN = {"authorization": f"Bearer {TOKEN}"}
LENGTH = "inference-header-content-length"
LIMIT_MB = 1

X = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}
RAW_X = {**{key: X[key] for key in ("name", "datatype", "shape")}, "parameters": {}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """A process with a model of each kind that the protocol has a rule for."""
    folder = tmp_path_factory.mktemp("v2")
    for name, model in {
        "broken": None,
        "bytes": onnx_models.identity("BYTES", ("N", 1)),
        "fixed": onnx_models.fixed_rows(rows=2),
        "halves": onnx_models.identity("FP16", ("N", "M")),
        "matrix": onnx_models.identity("FP32", ("N", "M", "K")),
        "pair": onnx_models.two_inputs(),
        "rank": onnx_models.unknown_rank(),
        "same": onnx_models.identity(),
        "slow": onnx_models.loop(),
        "strings": onnx_models.strings(),
    }.items():
        path = folder / "models" / name / "1/model.onnx"
        if model is None:
            path.parent.mkdir(parents=True)
            path.write_bytes(b"broken")
        else:
            onnx_models.save(model, path)
    (folder / "models/slow/config.yaml").write_text("timeout_ms: 600000\n")
    with cohort(folder / "models", folder, admin_token=TOKEN, max_body_mb=LIMIT_MB) as started:
        yield started


@pytest.fixture(scope="module")
def client(server: Cohort) -> Iterator[httpx.Client]:
    """One client for all tests, its connections kept between them."""
    with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
        yield client


def message(document: object, *data: bytes) -> tuple[bytes, dict[str, str]]:
    """Return JSON with binary data after it, and the header with the JSON's length."""
    head = json.dumps(document).encode()
    return b"".join([head, *data]), {LENGTH: str(len(head))}


def infer(client: httpx.Client, model: str, document: object, *data: bytes) -> httpx.Response:
    """Send a request to `model`, with `data` after the JSON if there is any."""
    body, headers = message(document, *data)
    return client.post(f"/v2/models/{model}/infer", content=body, headers=headers if data else {})


def ask(model_input: dict[str, Any], **more: object) -> dict[str, Any]:
    """A request with this one input."""
    return {"inputs": [model_input], **more}


def sized(size: object, **changes: object) -> dict[str, Any]:
    """Input x with `size` bytes of binary data announced."""
    return {**RAW_X, "parameters": {"binary_data_size": size}, **changes}


def split(answer: httpx.Response) -> tuple[Any, bytes]:
    """The JSON of an answer, and what follows it."""
    length = int(answer.headers[LENGTH])
    assert answer.headers["content-type"] == "application/octet-stream"
    return json.loads(answer.content[:length]), answer.content[length:]


ROW = np.array([1, 2, 3], "f4").tobytes()


# --- What is answered


def test_json_is_answered_in_json(client: httpx.Client) -> None:
    """A JSON request gets flat data in JSON, with model, version, id, datatype and shape."""
    answer = infer(client, "same", ask(X, id="a1"))
    assert answer.headers["content-type"] == "application/json"
    assert LENGTH not in answer.headers
    assert answer.json() == {
        "model_name": "same",
        "model_version": "1",
        "id": "a1",
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 3], "data": [1.0, 2.0, 3.0]}],
    }


@pytest.mark.parametrize("data", [[1, 2, 3, 4, 5, 6], [[1, 2, 3], [4, 5, 6]]])
def test_data_is_flat_or_nested(client: httpx.Client, data: list[Any]) -> None:
    """Both forms have the values of the shape."""
    answer = infer(client, "same", ask({**X, "shape": [2, 3], "data": data}))
    assert answer.json()["outputs"][0]["data"] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("more", "binary"),
    [
        ({"parameters": {"binary_data_output": True}}, True),
        ({"parameters": {"binary_data_output": False}}, False),
        ({"outputs": [{"name": "y", "parameters": {"binary_data": True}}]}, True),
        ({"outputs": [{"name": "y"}], "parameters": {"binary_data_output": True}}, True),
        (
            {
                "outputs": [{"name": "y", "parameters": {"binary_data": False}}],
                "parameters": {"binary_data_output": True},
            },
            False,
        ),
        ({"outputs": []}, False),
    ],
)
def test_an_outputs_own_wish_comes_first(
    client: httpx.Client, more: dict[str, Any], binary: bool
) -> None:
    """binary_data of an output beats binary_data_output of the request."""
    answer = infer(client, "same", ask(sized(12), **more), ROW)
    if not binary:
        assert answer.json()["outputs"][0]["data"] == [1, 2, 3]
        return
    told, data = split(answer)
    assert told["outputs"] == [
        {"name": "y", "datatype": "FP32", "shape": [1, 3], "parameters": {"binary_data_size": 12}}
    ]
    assert data == ROW


def test_binary_data_lies_in_the_order_of_the_inputs(client: httpx.Client) -> None:
    """Inputs in JSON use no data; outputs come in the requested order."""
    b = {"name": "b", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}}
    request = {
        "inputs": [b, {**b, "name": "a"}],
        "outputs": [
            {"name": "difference", "parameters": {"binary_data": True}},
            {"name": "sum", "parameters": {"binary_data": True}},
        ],
    }
    one, ten = np.array([1, 2], "f4").tobytes(), np.array([10, 20], "f4").tobytes()
    told, data = split(infer(client, "pair", request, ten, one))
    assert [output["name"] for output in told["outputs"]] == ["difference", "sum"]
    assert np.frombuffer(data, "f4").tolist() == [-9, -18, 11, 22]


def test_texts_are_preceded_by_their_length(client: httpx.Client) -> None:
    """It is four bytes, little-endian, in requests and responses."""
    text = b"\x03\x00\x00\x00cat" + b"\x00\x00\x00\x00"
    one = {"name": "x", "datatype": "BYTES", "shape": [2, 1]}
    request = ask({**one, "parameters": {"binary_data_size": len(text)}})
    told, data = split(
        infer(client, "bytes", {**request, "parameters": {"binary_data_output": True}}, text)
    )
    assert data == text
    assert told["outputs"][0]["shape"] == [2, 1]


@pytest.mark.parametrize(
    ("model", "body", "shape"),
    [
        pytest.param("same", bytes(36), [3, 3], id="rows follow from the size"),
        pytest.param("same", b"", [0, 3], id="no rows at all"),
        pytest.param("fixed", bytes(24), [2, 3], id="nothing is open"),
        pytest.param("halves", bytes(10), [1, 5], id="of two open ones the first is one row"),
    ],
)
def test_a_body_of_nothing_but_data_gets_its_shape(
    client: httpx.Client, model: str, body: bytes, shape: list[int]
) -> None:
    """Inference-Header-Content-Length is 0, and the answer is also binary."""
    answer = client.post(f"/v2/models/{model}/infer", content=body, headers={LENGTH: "0"})
    told, data = split(answer)
    assert told["outputs"][0]["shape"] == shape
    assert data == body


def test_a_body_of_nothing_but_text_is_one_element(client: httpx.Client) -> None:
    """It has no length in front, as in Triton."""
    answer = client.post("/v2/models/bytes/infer", content="žluť", headers={LENGTH: "0"})
    told, data = split(answer)
    assert told["outputs"][0]["shape"] == [1, 1]
    assert data[4:].decode() == "žluť"


@pytest.mark.parametrize("path", ["/v2/models/same", "/v2/models/same/versions/1"])
def test_a_version_has_the_same_routes(client: httpx.Client, path: str) -> None:
    """Metadata, readiness, config, statistics and inference work with and without a version."""
    assert client.get(path).json()["inputs"] == [
        {"name": "x", "datatype": "FP32", "shape": [-1, 3]}
    ]
    assert client.get(f"{path}/ready").json() == {"name": "same", "ready": True}
    assert client.head(f"{path}/ready").is_success
    assert client.get(f"{path}/config").json()["name"] == "same"
    assert client.get(f"{path}/stats").json()["model_stats"][0]["version"] == "1"
    assert client.post(f"{path}/infer", json=ask(X)).json()["model_version"] == "1"


def test_the_server_answers_for_itself(client: httpx.Client) -> None:
    """It reports its name, that it is live and that it is ready."""
    assert client.get("/v2").json()["name"] == "cohort"
    assert client.get("/v2/health/live").json() == {"live": True}
    assert client.get("/v2/health/ready").json() == {"ready": True}


def test_the_index_leaves_out_what_is_not_ready_when_asked(client: httpx.Client) -> None:
    """The rest is there with its state and reason."""
    everything = {one["name"]: one for one in client.post("/v2/repository/index").json()}
    assert everything["broken"]["state"] == "UNAVAILABLE"
    assert everything["broken"]["reason"]
    ready = client.post("/v2/repository/index", json={"ready": True}).json()
    assert {one["name"] for one in ready} == everything.keys() - {"broken"}
    assert client.post("/v2/repository/index", json={"ready": 1}).status_code == 400


# --- What is refused


@pytest.mark.parametrize(
    ("document", "data", "says"),
    [
        ([], b"", "body must be a JSON object"),
        (None, b"", "body must be a JSON object"),
        ({}, b"", "inputs is missing"),
        ({"inputs": {}}, b"", "inputs must be a list"),
        ({"inputs": [7]}, b"", "inputs[0] must be a JSON object, got 7"),
        (ask({**X, "name": None}), b"", "inputs[0].name"),
        (ask({**X, "datatype": 1}), b"", "inputs[0].datatype must be a string, got 1"),
        (ask({**X, "datatype": None}), b"", "inputs[0].datatype is missing"),
        (ask({**X, "shape": "1,3"}), b"", "inputs[0].shape"),
        (ask({**X, "shape": [1, -3]}), b"", "'x'"),
        (ask({**X, "shape": [1, 3.0]}), b"", "'x'"),
        (ask({**X, "shape": [True, 3]}), b"", "'x'"),
        (ask({**X, "shape": [2**62, 2**62]}), b"", "'x'"),
        (ask({**X, "shape": [1] * 70}), b"", "'x'"),
        (ask({**X, "shape": [3]}), b"", "[N, 3]"),
        (ask({**X, "shape": [1, 4]}), b"", "'x'"),
        (ask({**X, "data": [1, 2]}), b"", "needs 3 elements, got 2"),
        (ask({**X, "data": [[1], [2, 3]]}), b"", "ragged"),
        (ask({**X, "data": [1, "2", 3]}), b"", "'x'"),
        (ask({**X, "data": 1}), b"", "'x'"),
        (ask({**X, "data": {"a": 1}}), b"", "'x'"),
        (ask(RAW_X), b"", "inputs[0] has neither data nor"),
        (ask({**X, "name": "xx"}), b"", "input 'xx' not found"),
        ({"inputs": []}, b"", "input 'x' is missing"),
        ({"inputs": {"x": [[1]]}}, b"", "POST /models/{model}/predict takes this form"),
        ({"instances": [[1]]}, b"", "POST /v1/models/{model}:predict takes TensorFlow Serving's"),
        ({"inputs": [X, X]}, b"", "inputs[1].name repeats 'x'"),
        (ask({**X, "datatype": "FP64"}), b"", "is FP32, but the request declares datatype 'FP64'"),
        (ask({**X, "datatype": "fp32"}), b"", "'fp32'"),
        (ask({**X, "parameters": 3}), b"", "inputs[0].parameters"),
        (ask({**X, "parameters": {"shared_memory_region": "r"}}), b"", "shared_memory_byte_size"),
        (ask(X, id=[1]), b"", "id must be a string"),
        (ask(X, id=True), b"", "id must be a string"),
        (ask(X, parameters=[]), b"", "parameters must be a JSON object, got"),
        (ask(X, parameters={"timeout": "soon"}), b"", "parameters.timeout"),
        (ask(X, parameters={"timeout": -1}), b"", "parameters.timeout"),
        (ask(X, parameters={"timeout": 1.5}), b"", "parameters.timeout"),
        (ask(X, parameters={"timeout": True}), b"", "parameters.timeout"),
        (ask(X, parameters={"binary_data_output": 1}), b"", "parameters.binary_data_output"),
        (ask(X, outputs={}), b"", "outputs must be a list"),
        (ask(X, outputs=["y"]), b"", "outputs[0] must be a JSON object"),
        (ask(X, outputs=[{"name": "z"}]), b"", "output 'z' not found"),
        (ask(X, outputs=[{"name": "y"}] * 2), b"", "outputs[1].name"),
        (
            ask(X, outputs=[{"name": "y", "parameters": {"binary_data": "no"}}]),
            b"",
            "outputs[0].parameters.binary_data",
        ),
        (
            ask(X, outputs=[{"name": "y", "parameters": {"classification": -1}}]),
            b"",
            "outputs[0].parameters.classification",
        ),
        (
            ask(X, outputs=[{"name": "y", "parameters": {"shared_memory_region": "r"}}]),
            b"",
            "shared_memory_byte_size",
        ),
        (ask(X), b"rest", "4 bytes follow the JSON"),
        (ask(sized(12)), ROW + b"x", "13 bytes follow the JSON"),
        (ask(sized(12)), ROW[:-1], "is 12, but only 11 bytes of binary data remain"),
        (ask(sized(8)), ROW[:8], "needs 12 bytes, got 8"),
        (ask(sized(-1)), ROW, "inputs[0].parameters.binary_data_size"),
        (ask(sized(True)), ROW, "inputs[0].parameters.binary_data_size"),
        (ask(sized("12")), ROW, "inputs[0].parameters.binary_data_size"),
        (ask(sized(12.0)), ROW, "inputs[0].parameters.binary_data_size"),
        (ask(sized(2**70)), ROW, "binary_data_size"),
        (ask(sized(12, data=[1])), ROW, "inputs[0] has both data and"),
    ],
)
def test_a_malformed_message_is_told_with_its_field(
    client: httpx.Client, document: Any, data: bytes, says: str
) -> None:
    """400 and the one form of error; the same connection is good for the next request."""
    answer = infer(client, "same", document, data) if data else infer(client, "same", document)
    told = answer.json()
    assert (answer.status_code, told["code"]) == (400, "InvalidInput"), told
    assert says in told["error"]
    assert "connection" not in answer.headers
    assert infer(client, "same", ask(X)).is_success


@pytest.mark.parametrize("length", ["", "-1", "x", "1e2", "٣", "9" * 30, "1000000", "5"])
def test_a_wrong_header_length_is_told(client: httpx.Client, length: str) -> None:
    """It may be no number, too long, or in the middle of the JSON."""
    headers = httpx.Headers([(LENGTH.encode(), length.encode())])
    answer = client.post("/v2/models/same/infer", json=ask(X), headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (400, "InvalidInput")


@pytest.mark.parametrize(
    ("model", "body", "says"),
    [
        (
            "same",
            bytes(13),
            "13 bytes are not a whole number of rows of 12 bytes: input 'x' is FP32",
        ),
        ("halves", bytes(3), "3 bytes are not a multiple of 2 bytes"),
        ("fixed", bytes(12), "needs 24 bytes, got 12"),
        ("pair", bytes(16), "needs a model with one input"),
        ("matrix", bytes(16), "cannot be derived from the body's size"),
        ("rank", bytes(16), "cannot be derived from the body's size"),
        ("bytes", b"\xff\xfe", "UTF-8"),
    ],
)
def test_data_whose_shape_does_not_follow_is_refused(
    client: httpx.Client, model: str, body: bytes, says: str
) -> None:
    """The error states the reason."""
    answer = client.post(f"/v2/models/{model}/infer", content=body, headers={LENGTH: "0"})
    assert answer.status_code == 400
    assert says in answer.json()["error"]


@pytest.mark.parametrize(
    ("document", "data"),
    [
        (ask({"name": "text", "datatype": "BYTES", "shape": [1, 1]}), b"\x05\x00\x00\x00cat"),
        (ask({"name": "text", "datatype": "BYTES", "shape": [2, 1]}), b"\x03\x00\x00\x00cat"),
        (ask({"name": "text", "datatype": "BYTES", "shape": [1, 1]}), b"\x03\x00\x00\x00cat!"),
        (ask({"name": "text", "datatype": "BYTES", "shape": [1, 1]}), b"\x03\x00"),
        (ask({"name": "text", "datatype": "BYTES", "shape": [1, 1]}), b"\xff\xff\xff\xffcat"),
        (ask({"name": "text", "datatype": "BYTES", "shape": [10**6, 1]}), b"\x00\x00\x00\x00"),
    ],
)
def test_texts_that_do_not_add_up_are_refused(
    client: httpx.Client, document: dict[str, Any], data: bytes
) -> None:
    """Lengths beyond the data, data beyond the lengths, and fewer elements than the shape has."""
    document["inputs"][0]["parameters"] = {"binary_data_size": len(data)}
    answer = infer(client, "strings", document, data)
    assert answer.status_code == 400
    assert "'text'" in answer.json()["error"]


def test_nan_is_refused_in_json_and_goes_in_binary(client: httpx.Client) -> None:
    """JSON cannot express it, so the error names the form that can."""
    nan = np.array([np.nan] * 3, "f4").tobytes()
    refused = infer(client, "same", ask(sized(12)), nan)
    assert "binary" in refused.json()["error"]
    asked = ask(sized(12), parameters={"binary_data_output": True})
    assert split(infer(client, "same", asked, nan))[1] == nan


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v2/models/nobody", 404),
        ("GET", "/v2/models/same/versions/2", 404),
        ("GET", "/v2/models/broken", 503),
        ("GET", "/v2/models/broken/ready", 503),
        ("GET", "/v2/models/nobody/ready", 404),
        ("GET", "/v2/models/broken/config", 503),
        ("GET", "/v2/models/broken/stats", 503),
        ("POST", "/v2/models/broken/infer", 503),
        ("POST", "/v2/models/nobody/infer", 404),
        ("GET", "/v2/models/same/infer", 405),
        ("GET", "/v2/models/same/nothing", 404),
        ("POST", "/v2/repository/models/same/nothing", 404),
    ],
)
def test_what_is_not_there_is_told(
    client: httpx.Client, method: str, path: str, status: int
) -> None:
    """Every route reports it in the same form."""
    answer = client.request(method, path, json=ask(X) if method == "POST" else None)
    assert answer.status_code == status
    assert set(answer.json()) == {"error", "code"}


# --- Compression, limits, leaving


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_the_header_length_counts_plain_bytes(client: httpx.Client, encoding: str) -> None:
    """A body is unpacked before it is cut."""
    body, headers = message(ask(sized(12), parameters={"binary_data_output": True}), ROW)
    packed = (gzip if encoding == "gzip" else zlib).compress(body)
    answer = client.post(
        "/v2/models/same/infer",
        content=packed,
        headers={**headers, "content-encoding": encoding, "accept-encoding": encoding},
    )
    assert split(answer)[1] == ROW


def test_a_large_answer_is_packed_for_who_asks(client: httpx.Client) -> None:
    """Its header length counts unpacked bytes."""
    big = np.arange(3000, dtype="f4")
    request = ask(
        sized(12000, shape=[1000, 3]),
        parameters={"binary_data_output": True},
    )
    body, headers = message(request, big.tobytes())
    for accept, packed in (("gzip", "gzip"), ("gzip, deflate, br", None)):
        answer = client.post(
            "/v2/models/same/infer", content=body, headers={**headers, "accept-encoding": accept}
        )
        assert answer.headers.get("content-encoding") == packed
        assert split(answer)[1] == big.tobytes()


@pytest.mark.parametrize(
    ("encoding", "body", "status"),
    [
        ("gzip", gzip.compress(bytes(40 << 20)), 413),
        ("deflate", zlib.compress(bytes((LIMIT_MB << 20) + 1)), 413),
        ("gzip", b"not gzip", 400),
        ("gzip", gzip.compress(b"{}", mtime=0)[:-3], 400),
        ("br", b"{}", 415),
    ],
)
def test_a_bad_packing_is_refused(
    client: httpx.Client, encoding: str, body: bytes, status: int
) -> None:
    """Bombs, damage and unknown codings; the connection is good for the next request."""
    headers = {"content-encoding": encoding}
    answer = client.post("/v2/models/same/infer", content=body, headers=headers)
    assert answer.status_code == status, answer.text
    assert infer(client, "same", ask(X)).is_success


def test_what_was_refused_is_counted(server: Cohort, client: httpx.Client) -> None:
    """It counts by its code, with or without a version."""

    def counted() -> float:
        return Scrape(server.url).value("model_inference_total", model="same", code="InvalidInput")

    before = counted()
    infer(client, "same", [])
    infer(client, "same", ask({**X, "name": "xx"}))
    assert counted() == before + 2


def trips(count: int) -> dict[str, Any]:
    """Return a request to the slow model for a run of `count` trips."""
    return ask({"name": "n", "datatype": "INT64", "shape": [1, 1], "data": [count]})


def test_a_caller_who_hangs_up_is_forgotten(server: Cohort) -> None:
    """The request is cancelled, and none stays in progress."""
    body = json.dumps(trips(onnx_models.FOREVER)).encode()
    host, port = server.url.removeprefix("http://").split(":")
    before = Scrape(server.url).value("model_cancelled_total", model="slow")
    with socket.create_connection((host, int(port))) as caller:
        caller.sendall(
            b"POST /v2/models/slow/infer HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b"
            % (len(body), body)
        )
        wait_until(lambda: Scrape(server.url).value("model_inflight_requests", model="slow") == 1)
    cancelled = "model_cancelled_total"
    wait_until(lambda: Scrape(server.url).value(cancelled, model="slow") == before + 1)
    wait_until(lambda: Scrape(server.url).value("model_inflight_requests", model="slow") == 0)


def test_who_is_in_flight_is_answered_before_a_model_goes(
    server: Cohort, client: httpx.Client
) -> None:
    """It gets its answer while the model unloads, others get 503, and then the model is out."""
    few = trips(7)
    answers: list[httpx.Response] = []
    caller = threading.Thread(
        target=lambda: answers.append(httpx.post(f"{server.url}/v2/models/slow/infer", json=few))
    )
    with endless_runs(server, "slow") as others:
        caller.start()
        wait_until(lambda: in_progress(server, "slow") == len(others) + 1)
        assert client.post("/v2/repository/models/slow/unload", headers=ADMIN).is_success
        assert infer(client, "slow", few).status_code == 503
    caller.join(PATIENCE)
    assert answers[0].json()["outputs"][0]["data"] == [7]
    wait_until(lambda: state(client, "slow") == ("UNAVAILABLE", "unloaded"))
    assert client.post("/admin/models/slow/load", headers=ADMIN).is_success
    assert state(client, "slow") == ("READY", "")


@pytest.mark.parametrize("verb", ["load", "unload"])
@pytest.mark.parametrize("parameters", [[], "", 0, False])
def test_parameters_of_a_load_are_an_object(
    client: httpx.Client, verb: str, parameters: object
) -> None:
    """An empty value of another type is refused, and the model stays as it is."""
    path = f"/v2/repository/models/same/{verb}"
    answer = client.post(path, json={"parameters": parameters}, headers=ADMIN)
    assert answer.status_code == httpx.codes.BAD_REQUEST
    assert answer.json()["error"].startswith("parameters must be a JSON object, got")
    assert client.get("/v2/models/same/ready").status_code == httpx.codes.OK


def test_a_broken_model_says_why_it_cannot_be_loaded(client: httpx.Client) -> None:
    """The operator who loads it gets the reason, on both routes."""
    for route in ("/v2/repository/models/broken/load", "/admin/models/broken/load"):
        answer = client.post(route, headers=ADMIN)
        assert (answer.status_code, answer.json()["code"]) == (503, "NotReady")
        assert answer.json()["error"].startswith("version 1: ")


def state(client: httpx.Client, model: str) -> tuple[str, str]:
    """Return the index's entry of a model with one version."""
    (one,) = [x for x in client.post("/v2/repository/index").json() if x["name"] == model]
    return one["state"], one["reason"]


# --- Whatever may come

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=8,
)
mistaken = st.fixed_dictionaries(
    {},
    optional={
        "name": st.just("x") | anything,
        "datatype": st.sampled_from(["FP32", "BYTES", "INT64", ""]) | anything,
        "shape": st.lists(st.integers(-1, 4) | st.just(2**62), max_size=4) | anything,
        "data": st.lists(st.floats(width=32), max_size=6) | anything,
        "parameters": st.fixed_dictionaries(
            {}, optional={"binary_data_size": st.integers(-2, 40) | anything}
        )
        | anything,
    },
)
documents = st.fixed_dictionaries(
    {},
    optional={
        "inputs": st.lists(mistaken, max_size=3) | anything,
        "outputs": st.lists(
            st.fixed_dictionaries({"name": st.just("y")}, optional={"parameters": anything})
        )
        | anything,
        "id": anything,
        "parameters": st.dictionaries(
            st.sampled_from(["timeout", "binary_data_output", "priority"]), anything
        )
        | anything,
    },
)


@settings(max_examples=examples(300), deadline=None)
@given(
    documents | anything,
    st.binary(max_size=40),
    st.integers(-5, 5) | st.just(None) | st.integers(-(2**70), 2**70),
    st.sampled_from(["same", "pair", "strings", "bytes", "halves", "rank"]),
)
@example({"inputs": [sized(12)]}, ROW, 0, "same")
def test_no_message_breaks_the_server(
    client: httpx.Client, document: object, tail: bytes, off: int | None, model: str
) -> None:
    """Odd documents, sizes, tails and header lengths get an answer or a 4xx, and never hang."""
    head = json.dumps(document, allow_nan=True).encode()
    headers = {} if off is None else {LENGTH: str(len(head) + off)}
    answer = client.post(f"/v2/models/{model}/infer", content=head + tail, headers=headers)
    assert answer.status_code in {200, 400, 504}, answer.text  # 504: a timeout may be tiny
    if answer.status_code == 400:
        assert set(answer.json()) == {"error", "code"}


GOOD, GOOD_HEADERS = message(ask(sized(12), parameters={"binary_data_output": True}), ROW)


@settings(max_examples=examples(200), deadline=None)
@given(
    st.integers(0, len(GOOD)),
    st.integers(0, len(GOOD)),
    st.binary(max_size=8),
    st.integers(0, len(GOOD) + 8),
)
def test_no_damage_to_a_message_breaks_the_server(
    client: httpx.Client, start: int, end: int, put: bytes, length: int
) -> None:
    """A good message may be cut short, overwritten, or cut at another place."""
    body = GOOD[: min(start, end)] + put + GOOD[max(start, end) :]
    for headers in (GOOD_HEADERS, {LENGTH: str(length)}):
        answer = client.post("/v2/models/same/infer", content=body, headers=headers)
        assert answer.status_code in {200, 400}, answer.text


@settings(max_examples=examples(100), deadline=None)
@given(st.binary(max_size=64), st.sampled_from(["same", "bytes", "halves", "pair", "strings"]))
def test_no_bare_data_breaks_the_server(client: httpx.Client, body: bytes, model: str) -> None:
    """Any bytes as a model's only input get 200 or 400."""
    answer = client.post(f"/v2/models/{model}/infer", content=body, headers={LENGTH: "0"})
    assert answer.status_code in {200, 400}, answer.text


def test_the_server_came_through(client: httpx.Client) -> None:
    """After all tests above it is ready, and no request is in progress."""
    assert client.get("/v2/health/ready").is_success
    assert infer(client, "same", ask(X)).json()["outputs"][0]["data"] == [1, 2, 3]
    assert Scrape(str(client.base_url).rstrip("/")).value("model_inflight_requests") == 0
