"""The cost of a request grows in proportion to each of its parts.

Each part of each kind of request is grown by 32, and the processor time of the server's process may
grow by 160. That is five times the right growth, and less than a sixth of quadratic growth. Small
requests have a fixed cost, which would hide growth. So the cost of a request with one of the part
is subtracted. The sizes are raised until the larger request costs `ENOUGH`, or is as large as
requests here get.
"""

from __future__ import annotations

import base64
import gzip
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import cast

import grpc
import numpy as np
import pytest

from tests import onnx_models
from tests.attacks.asker import processor_time
from tests.counting import check_growth
from tests.e2e.processes import Cohort, cohort, free_port
from tests.http.wire import chunked, exchange, request
from tests.rpc.client import PATH, Request

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="other systems do not tell the time of a process so exactly"
)

ENOUGH = 0.05
"""Seconds of processor time that the larger request costs, where it may be as large as that."""

HARMLESS = 0.03
"""Seconds that any request here may cost."""

LARGEST = 4 << 20
MORE_MEMORY = 320 << 20  # texts of all threads at once, which the allocator keeps
"""Bytes of a request here at most."""

TIMES = 32
"""Factor by which a part grows."""

MOST = 5 * TIMES
"""Factor by which the processor time may then grow."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """A server of numbers and of text, whose models do little work."""
    folder = tmp_path_factory.mktemp("growth")
    models = folder / "models"
    onnx_models.save(onnx_models.mlp(), models / "mlp/1/model.onnx")
    onnx_models.save(onnx_models.strings(), models / "strings/1/model.onnx")
    (models / "mlp/config.yaml").write_text("timeout_ms: 60000\n")
    with cohort(
        models, folder, grpc_port=free_port(), watch_seconds=0, default_model="mlp"
    ) as started:
        yield started


Ask = Callable[[Cohort, int], None]


@dataclass(frozen=True)
class Part:
    """A part that grows: a way to ask with `n` of it, and the maximum `n`."""

    ask: Ask
    most: int = LARGEST


def check(server: Cohort, part: Part) -> None:
    """Fail where TIMES as much costs more than MOST times as much."""

    def clock() -> float:
        return processor_time(server.process.pid)

    def cost(n: int) -> float:
        before = clock()
        part.ask(server, n)
        return clock() - before

    n = min(16, part.most // TIMES)
    while cost(TIMES * n) < ENOUGH and 4 * TIMES * n <= part.most:
        n *= 4
    check_growth(
        lambda: part.ask(server, n),
        lambda: part.ask(server, TIMES * n),
        most=MOST,
        harmless=HARMLESS,
        clock=clock,
        base=lambda: part.ask(server, 1),
    )


# -- over HTTP

X = [[0.1, 0.2, 0.3, 0.4]]
PREDICT, ORDINARY = "/models/mlp/predict", "/models/mlp/predict?by=asgi"
V1, V2, TEXTS = "/v1/models/mlp:predict", "/v2/models/mlp/infer", "/v2/models/strings/infer"
INPUT = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": X}


def http(make: Callable[[int], bytes | Iterable[bytes]], most: int = LARGEST) -> Part:
    """Send what `make` gives, in one go or in parts; any answer will do, but for failures."""

    def ask(server: Cohort, n: int) -> None:
        made = make(n)
        found = exchange(server.url, [made] if isinstance(made, bytes) else made)
        assert all(one.status < 500 for one in found), found[0].body

    return Part(ask, most)


def predict(make: Callable[[int], object], size: int = 1, path: str = PREDICT) -> Part:
    """Send a body to `/predict`; `size` are the bytes that each of the growing part takes."""
    return http(lambda n: request(path, make(n)), LARGEST // size)


def v2(make: Callable[[int], dict[str, object]], size: int = 1, path: str = V2) -> Part:
    """Send a body of Open Inference."""
    return http(lambda n: request(path, {"inputs": [INPUT], **make(n)}), LARGEST // size)


def names(n: int, prefix: str = "k") -> list[str]:
    return [f"{prefix}{number:07}" for number in range(n)]


def binary(n: int) -> bytes:
    """BYTES elements of one letter, in the binary extension."""
    tensor = {"name": "text", "datatype": "BYTES", "shape": [n, 1],
              "parameters": {"binary_data_size": 5 * n}}  # fmt: skip
    head = json.dumps({"inputs": [tensor]}).encode()
    length = f"inference-header-content-length: {len(head)}"
    return request(TEXTS, head + b"\1\0\0\0a" * n, length)


def in_chunks(n: int, path: str) -> bytes:
    body = json.dumps({"input": X}).encode().ljust(n)
    return request(
        path, chunked(*(body[at : at + 1] for at in range(n))), "transfer-encoding: chunked"
    )


def escaped(text: str) -> bytes:
    return b'{"input": [[1, 2, 3, 4]], "id": "' + text.encode() + b'"}'


FORM = "content-type: multipart/form-data; boundary=b"
FORM_PART = b'--b\r\nContent-Disposition: form-data; name="x"\r\n\r\n[[1,2,3,4]]\r\n'

HTTP: dict[str, Part] = {
    "name of a model": predict(lambda n: {"input": X, "model": "m" * n}, path="/predict"),
    "name of a model in V2's path": http(
        lambda n: request(f"/v2/models/{'m' * n}/infer", {"inputs": [INPUT]}), 50_000),
    "name of a model in V1's path": http(
        lambda n: request(f"/v1/models/{'m' * n}:predict", {"instances": X}), 50_000),
    "colons in V1's path": http(
        lambda n: request(f"/v1/models/{':' * n}/x", {"instances": X}), 50_000),
    "colons in V1's path of a label": http(
        lambda n: request(f"/v1/models/m/labels/{':' * n}/x", {"instances": X}), 50_000),
    "slashes in a path": http(lambda n: request("/" * n, b""), 50_000),
    "escapes in a path": http(lambda n: request("/models/" + "%41" * n, b""), 15_000),
    "version": predict(lambda n: {"input": X, "version": "1" * n}),
    "key": predict(lambda n: {"input": X, "k" * n: 1}),
    "keys": predict(lambda n: {"input": X, **dict.fromkeys(names(n), 1)}, 14),
    "keys on the ordinary path": predict(
        lambda n: {"input": X, **dict.fromkeys(names(n), 1)}, 14, ORDINARY),
    "parameters": predict(lambda n: {"input": X, "parameters": dict.fromkeys(names(n), 1)}, 14),
    "inputs": predict(lambda n: {"inputs": dict.fromkeys(names(n), X)}, 40),
    "name of an input": predict(lambda n: {"inputs": {"x" * n: X}}),
    "outputs, one repeated": predict(lambda n: {"input": X, "outputs": ["y"] * n}, 5),
    "outputs": predict(lambda n: {"input": X, "outputs": names(n)}, 14),
    "depth": predict(lambda n: b'{"input": ' + b"[" * n + b"]" * n + b"}", LARGEST // 900),
    "depth and width": predict(
        lambda n: b'{"input": ' + b"[" * 60 + b",".join([b"[1]"] * n) + b"]" * 60 + b"}", 4),
    "depth never closed": predict(lambda n: b'{"input": ' + b"[" * n),
    "rows": predict(lambda n: {"input": X * n}, 22),
    "rows and a bad one": predict(lambda n: {"input": [*X * n, [1]]}, 22),
    "rows and one out of range": predict(lambda n: {"input": [*X * n, [1e300] * 4]}, 22),
    "width": predict(lambda n: {"input": [[0.5] * n]}, 5),
    "digits of a number": predict(lambda n: b'{"input": [[1.%b, 2, 3, 4]]}' % (b"1" * n)),
    "text where numbers are": predict(lambda n: {"input": [["a" * n]]}),
    "id": predict(lambda n: {"input": X, "id": "i" * n}),
    "escapes in a string": predict(lambda n: escaped("\\u00e4" * n), 6),
    "blanks": predict(lambda n: b" " * n + b'{"input": [[1, 2, 3, 4]]}'),
    "lines of broken JSON": predict(lambda n: b"\n" * n + b'{"input": ['),
    "headers": http(
        lambda n: request(PREDICT, {"input": X}, *[f"x-{i}: 1" for i in range(n)]), 5000),
    "header": http(lambda n: request(PREDICT, {"input": X}, f"x: {'a' * n}"), 50_000),
    "accepted codings": http(
        lambda n: request(V2, {"inputs": [INPUT]}, f"accept-encoding: {'a,' * n}"), 25_000),
    "chunks": http(lambda n: in_chunks(n, PREDICT), LARGEST // 6),
    "chunks on the ordinary path": http(lambda n: in_chunks(n, ORDINARY), LARGEST // 6),
    "segments of a head": http(
        lambda n: [bytes([one]) for one in request(PREDICT, {"input": X}, f"x: {'a' * n}")], 5000),
    "requests in a segment": http(lambda n: request(PREDICT, {"input": X}) * n, 10_000),
    "requests on the ordinary path": http(lambda n: request(ORDINARY, {"input": X}) * n, 500),
    "requests that ask for an upgrade": http(
        lambda n: request(PREDICT, {"input": X}, "connection: upgrade", "upgrade: h2c") * n, 5000),
    "lines of another protocol": http(
        lambda n: request(PREDICT, chunked(b"A B RTSP/" * n), "transfer-encoding: chunked"),
        LARGEST // 9),
    "V1 instances": http(lambda n: request(V1, {"instances": X * n}), LARGEST // 22),
    "V1 instances by name": http(
        lambda n: request(V1, {"instances": [{"x": X[0]}] * n}), LARGEST // 30),
    "V1 names in an instance": http(
        lambda n: request(V1, {"instances": [dict.fromkeys(names(n), 1)]}), LARGEST // 14),
    "V1 columns": http(lambda n: request(V1, {"inputs": {"x": X * n}}), LARGEST // 22),
    "V1 keys": http(lambda n: request(V1, dict.fromkeys(names(n), 1)), LARGEST // 14),
    "V1 keys close to one": http(
        lambda n: request(V1, dict.fromkeys(names(n, "instances"), 1)), LARGEST // 22),
    "V1 signature": http(lambda n: request(V1, {"instances": X, "signature_name": "s" * n})),
    "V1 text in base64": http(
        lambda n: request("/v1/models/strings:predict",
                          {"instances": [[{"b64": base64.b64encode(b"a" * n).decode()}]]})),
    "V1 texts in base64": http(
        lambda n: request("/v1/models/strings:predict", {"instances": [[{"b64": "YQ=="}]] * n}),
        LARGEST // 16),
    "V2 inputs": v2(lambda n: {"inputs": [{**INPUT, "name": one} for one in names(n)]}, 90),
    "V2 inputs, one repeated": v2(lambda n: {"inputs": [INPUT] * n}, 80),
    "V2 inputs without a name": v2(lambda n: {"inputs": [{}] * n}, 4),
    "V2 outputs": v2(lambda n: {"outputs": [{"name": one} for one in names(n)]}, 22),
    "V2 outputs, one repeated": v2(lambda n: {"outputs": [{"name": "y"}] * n}, 15),
    "V2 parameters": v2(lambda n: {"parameters": dict.fromkeys(names(n), 1)}, 14),
    "V2 parameters of an input": v2(
        lambda n: {"inputs": [{**INPUT, "parameters": dict.fromkeys(names(n), 1)}]}, 14),
    "V2 parameters of an output": v2(
        lambda n: {"outputs": [{"name": "y", "parameters": dict.fromkeys(names(n), 1)}]}, 14),
    "V2 dimensions": v2(lambda n: {"inputs": [{**INPUT, "shape": [1] * n}]}, 3),
    "V2 digits of a dimension": v2(lambda n: {"inputs": [{**INPUT, "shape": ["1" * n, 4]}]}),
    "V2 data": v2(lambda n: {"inputs": [{**INPUT, "shape": [n, 4], "data": [0.5] * 4 * n}]}, 20),
    "V2 data of another shape": v2(lambda n: {"inputs": [{**INPUT, "data": [[0.5]] * n}]}, 7),
    "V2 datatype": v2(lambda n: {"inputs": [{**INPUT, "datatype": "F" * n}]}),
    "V2 id": v2(lambda n: {"id": "i" * n}),
    "V2 texts": v2(lambda n: {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [n, 1],
                                          "data": ["a"] * n}]}, 5, TEXTS),
    "V2 texts in binary": http(binary, LARGEST // 5),
    "files, text in base64": http(
        lambda n: request("/models/strings/predict",
                          {"input": [[{"b64": base64.b64encode(b"a" * n).decode()}]]})),
    "files, a header of .npy": http(
        lambda n: request(PREDICT, b"\x93NUMPY\2\0" + n.to_bytes(4, "little") + b"(" * n,
                          "content-type: application/x-npy")),
    "files, text": http(
        lambda n: request("/models/strings/predict", b"a" * n, "content-type: text/x")),
    "forms, parts": http(
        lambda n: request(PREDICT, FORM_PART * n + b"--b--", FORM), LARGEST // len(FORM_PART)),
    "forms, headers of a part": http(
        lambda n: request(PREDICT, b"--b\r\n" + b"a: b\r\n" * n, FORM), LARGEST // 6),
    "forms, the name of a part": http(
        lambda n: request(PREDICT, FORM_PART.replace(b"x", b"x" * n) + b"--b--", FORM)),
    "forms, a boundary": http(
        lambda n: request(PREDICT, b"--b--", FORM + "b" * n), 50_000),
    "forms, parameters of a content-type": http(
        lambda n: request(PREDICT, b"--b--", FORM + ";a=\"b" * n), 10_000),
    "CSV lines": http(
        lambda n: request("/invocations?model=mlp", b"1,2,3,4\n" * n, "content-type: text/csv"),
        LARGEST // 8),
    "CSV cells": http(
        lambda n: request("/invocations?model=mlp", b"1," * n, "content-type: text/csv"),
        LARGEST // 2),
    "CSV quotes": http(
        lambda n: request("/invocations?model=mlp", b'"' * n, "content-type: text/csv")),
    "columns of a table": http(
        lambda n: request("/invocations?model=mlp",
                          {"dataframe_split": {"columns": names(n), "data": [[1] * n]}}),
        LARGEST // 16),
    "records": http(
        lambda n: request("/invocations?model=mlp",
                          {"dataframe_records": [{"x": X[0]}] * n}), LARGEST // 40),
    "V2 compressed": http(
        lambda n: request(V2, gzip.compress(json.dumps({"inputs": [INPUT]}).encode().ljust(n)),
                          "content-encoding: gzip"), 4 * LARGEST),
}  # fmt: skip


@pytest.mark.parametrize("name", HTTP)
def test_http_costs_as_much_as_it_weighs(server: Cohort, name: str) -> None:
    """A part of a request that grows by 32 costs at most 160 times as much."""
    check(server, HTTP[name])


# -- over gRPC


def message(n: int = 1, **fields: object) -> Request:
    """A request of one row, or of `n`, with other fields."""
    made = Request(model_name="mlp")
    tensor = made.inputs.add(name="x", datatype="FP32", shape=[n, 4])
    tensor.contents.fp32_contents.extend(np.full(4 * n, 0.5, "f4"))
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def with_inputs(which: Iterable[str]) -> Request:
    made = Request(model_name="mlp")
    for name in which:
        made.inputs.add(name=name, datatype="FP32", shape=[1, 4])
    return made


def with_outputs(which: Iterable[str]) -> Request:
    made = message()
    made.outputs.extend(Request.InferRequestedOutputTensor(name=name) for name in which)
    return made


def with_parameters(n: int, place: str) -> Request:
    made = message()
    made.outputs.add(name="y")
    holders = {"request": made, "input": made.inputs[0], "output": made.outputs[0]}
    holder = cast("Request", holders[place])
    for name in names(n):
        holder.parameters[name].int64_param = 1
    return made


def with_dimensions(n: int) -> Request:
    made = message()
    made.inputs[0].shape.extend([1] * n)
    return made


def with_texts(n: int, *, raw: bool) -> Request:
    made = Request(model_name="strings")
    tensor = made.inputs.add(name="text", datatype="BYTES", shape=[n, 1])
    if raw:
        made.raw_input_contents.append(b"\1\0\0\0a" * n)
    else:
        tensor.contents.bytes_contents.extend([b"a"] * n)
    return made


def with_name(n: int, part: str) -> Request:
    made = message()
    setattr(made.inputs[0], part, "n" * n)
    return made


MESSAGES: dict[str, tuple[Callable[[int], Request], int]] = {
    "name of a model": (lambda n: message(model_name="m" * n), 1),
    "version": (lambda n: message(model_version="1" * n), 1),
    "id": (lambda n: message(id="i" * n), 1),
    "name of an input": (lambda n: with_name(n, "name"), 1),
    "datatype": (lambda n: with_name(n, "datatype"), 1),
    "inputs": (lambda n: with_inputs(names(n)), 24),
    "inputs, one repeated": (lambda n: with_inputs(["x"] * n), 16),
    "outputs": (lambda n: with_outputs(names(n)), 12),
    "outputs, one repeated": (lambda n: with_outputs(["y"] * n), 5),
    "parameters": (lambda n: with_parameters(n, "request"), 16),
    "parameters of an input": (lambda n: with_parameters(n, "input"), 16),
    "parameters of an output": (lambda n: with_parameters(n, "output"), 16),
    "dimensions": (with_dimensions, 1),
    "rows": (message, 16),
    "texts": (lambda n: with_texts(n, raw=False), 3),
    "texts in raw contents": (lambda n: with_texts(n, raw=True), 5),
}
OPTIONS = [(f"grpc.max_{way}_message_length", -1) for way in ("receive", "send")]
REFUSED = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND}


def unary(channel: grpc.Channel) -> Callable[..., str]:
    """Call, and give OK, or the status and the sentence with which a caller's fault is refused."""
    infer: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"{PATH}/ModelInfer")

    def call(sent: bytes, *, timeout: float) -> str:
        try:
            infer(sent, timeout=timeout)
        except grpc.RpcError as error:
            refused = cast("grpc.Call", error)
            if refused.code() not in REFUSED:
                raise
            return f"{refused.code().name}: {refused.details()}"
        return "OK"

    return call


@pytest.fixture(scope="module")
def channel(server: Cohort) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.grpc, options=OPTIONS) as connected:
        yield connected


@pytest.mark.parametrize("name", MESSAGES)
def test_a_grpc_call_costs_as_much_as_it_weighs(
    server: Cohort, channel: grpc.Channel, name: str
) -> None:
    """A part of a message that grows by 32 costs at most 160 times as much."""
    make, size = MESSAGES[name]
    call = unary(channel)

    def ask(_: Cohort, n: int) -> None:
        assert call(make(n).SerializeToString(), timeout=120)

    check(server, Part(ask, LARGEST // size))


@pytest.mark.parametrize("name", ["messages", "outputs, one repeated", "name of a model"])
def test_a_grpc_stream_costs_as_much_as_it_weighs(
    server: Cohort, channel: grpc.Channel, name: str
) -> None:
    """A stream costs as much as a call, and in proportion to its messages."""
    make, size = MESSAGES.get(name, (message, 1000))
    call: grpc.StreamStreamMultiCallable[bytes, bytes]
    call = channel.stream_stream(f"{PATH}/ModelStreamInfer")

    def ask(_: Cohort, n: int) -> None:
        one = (make(1) if name == "messages" else make(n)).SerializeToString()
        count = n if name == "messages" else 1
        assert sum(1 for _ in call(iter([one] * count), timeout=120)) == count

    check(server, Part(ask, LARGEST // size))


# -- names


@pytest.mark.parametrize("name", ["iris ", "-mlp", "mlp" * 43, "m\u00e4h", "../mlp", "mlp\n"])
def test_what_cannot_be_a_name_is_refused_by_every_api(
    server: Cohort, channel: grpc.Channel, name: str
) -> None:
    """The answer is that of a missing model, with the rule for names instead of a similar name."""
    said = {"hot": exchange(server.url, [request("/predict", {"input": X, "model": name})])[0]}
    ordinary = request("/predict?by=asgi", {"input": X, "model": name})
    said["ordinary"] = exchange(server.url, [ordinary])[0]
    if name == "mlp" * 43:
        v2_path, v1_path = f"/v2/models/{name}/infer", f"/v1/models/{name}:predict"
        said["V2"] = exchange(server.url, [request(v2_path, {"inputs": [INPUT]})])[0]
        said["V1"] = exchange(server.url, [request(v1_path, {"instances": X})])[0]
    for api, answer in said.items():
        assert answer.status == 404, api
        assert "; a name has at most 128" in answer.json["error"], api
    sent = message(model_name=name).SerializeToString()
    assert "NOT_FOUND: " in (told := unary(channel)(sent, timeout=120))
    assert "; a name has at most 128" in told


def test_lines_of_the_log_are_short(server: Cohort) -> None:
    """No line of the log is long after all tests above."""
    assert "Traceback" not in server.logged
    assert max(map(len, server.logged.splitlines())) < 1000
