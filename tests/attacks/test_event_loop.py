"""Work that would hold the event loop: other callers are answered while it runs."""

from __future__ import annotations

import asyncio
import io
import json
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from grpc import StatusCode

from tests import onnx_models
from tests.attacks.asker import processor_time
from tests.e2e.processes import Cohort, cohort, free_port
from tests.pipes import fill
from tests.rpc.client import connected, told
from tests.rpc.messages import field, tensor
from tests.waiting import wait_until

MODELS = 60
NUMBERS = 10_000_000
TEXTS = 250_000
WORD = b"a" * 100
TEXT = b"\x42%c" % len(WORD) + WORD  # an element of bytes_contents
RAW_TEXT = len(WORD).to_bytes(4, "little") + WORD
BAD = b"\xff" * (len(WORD) - 1)  # in place of the last one: all are read, and no model runs
JSON_BYTES = 32 << 20

MAX_WAIT = 1.0
"""Seconds: parsing these bodies of JSON keeps the interpreter's lock for a tenth of that."""

MORE_MEMORY = 800 << 20
"""Bytes: a body takes 200 MB while it is read, of which libc keeps some for each of its arenas."""

Attack = Callable[[Cohort], Awaitable[None]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """Models of one datatype each that give what they take, and many others."""
    folder = tmp_path_factory.mktemp("attacked")
    for datatype in ("INT64", "BYTES"):
        model = onnx_models.identity(datatype, ["N"])
        onnx_models.save(model, folder / "models" / datatype.lower() / "1" / "model.onnx")
    for number in range(MODELS):
        model = onnx_models.two_inputs()
        onnx_models.save(model, folder / "models" / f"other-{number}" / "1" / "model.onnx")
    with cohort(folder / "models", folder, grpc_port=free_port()) as server:
        yield server


def typed_numbers() -> bytes:
    contents = field(3, b"\x01" * NUMBERS)
    typed = field(4, field(1, b"binary_data_output") + field(2, b"\x08\x00"))
    return field(1, b"int64") + typed + tensor("INT64", [NUMBERS], field(5, contents))


def typed_texts() -> bytes:
    contents = TEXT * (TEXTS - 1) + b"\x42%c" % len(BAD) + BAD
    return field(1, b"bytes") + tensor("BYTES", [TEXTS], field(5, contents))


def raw_texts() -> bytes:
    return RAW_TEXT * (TEXTS - 1) + len(BAD).to_bytes(4, "little") + BAD


def raw_request() -> bytes:
    return field(1, b"bytes") + tensor("BYTES", [TEXTS], b"") + field(7, raw_texts())


async def unary(server: Cohort, data: bytes, *, fails: bool) -> None:
    async with connected(server.grpc) as client:
        call = client.raw("ModelInfer", data)
        assert (await call.code() is not StatusCode.OK) == fails
        assert ("not UTF-8" in str(await call.details())) == fails


async def stream(server: Cohort, data: bytes, *, fails: bool) -> None:
    async def requests() -> AsyncIterator[bytes]:
        yield data

    async with connected(server.grpc) as client:
        answer = await told(client.stream(requests()))
    assert ("not UTF-8" in answer.error_message) == fails


async def in_binary(server: Cohort) -> None:
    parameters = {"binary_data_size": len(raw_texts())}
    tensors = [{"name": "x", "datatype": "BYTES", "shape": [TEXTS], "parameters": parameters}]
    head = json.dumps({"inputs": tensors}).encode()
    async with httpx.AsyncClient(timeout=None) as client:
        answer = await client.post(
            f"{server.url}/v2/models/bytes/infer",
            content=head + raw_texts(),
            headers={"inference-header-content-length": str(len(head))},
        )
    assert "not UTF-8" in answer.json()["error"]


async def in_tiny_chunks(server: Cohort) -> None:
    """Eight callers, 200,000 chunks of a byte each."""
    host, port = server.url.removeprefix("http://").split(":")
    head = b"POST /models/int64/predict HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"

    async def ask() -> bytes:
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(head + b"1\r\n \r\n" * 200_000 + b"0\r\n\r\n")
        status = await reader.readline()
        writer.close()
        return status

    statuses = await asyncio.gather(*(ask() for _ in range(8)))
    assert statuses == [b"HTTP/1.1 400 Bad Request\r\n"] * 8


PREDICT, V1, V2 = "/models/{}/predict", "/v1/models/{}:predict", "/v2/models/{}/infer"


def in_json(
    path: str,
    model: str,
    before: bytes,
    unit: bytes,
    after: bytes,
    said: str,
    *,
    size: int = JSON_BYTES,
) -> Attack:
    """`unit` over and over, in JSON of about `size` bytes that is refused at its end."""

    async def attack(server: Cohort) -> None:
        content = before + unit * (size // len(unit)) + after
        async with httpx.AsyncClient(timeout=None) as client:
            answer = await client.post(server.url + path.format(model), content=content)
        assert said in answer.json()["error"]

    return attack


def v2_json(datatype: str, unit: bytes, after: bytes, said: str) -> Attack:
    about = b'{"inputs": [{"name": "x", "datatype": "%b", "shape": [%d], "data": ['
    shape = JSON_BYTES // len(unit) + 1
    before = about % (datatype.encode(), shape)
    return in_json(V2, datatype.lower(), before, unit, after + b"]}]}", said)


IN_JSON: dict[str, Attack] = {
    "rows": in_json(PREDICT, "int64", b'{"input": [', b"[123,456],", b"[1,true]]}", "got true"),
    "digits": in_json(PREDICT, "int64", b'{"input": [', b"1,", b'"1"]}', "got the string '1'"),
    "uneven rows": in_json(PREDICT, "int64", b'{"input": [', b"[123,456],", b"[1]]}", "ragged"),
    "no JSON": in_json(PREDICT, "int64", b'{"input": [', b"[123,456],", b"[1,]]}", "not valid"),
    "empty lists": in_json(
        PREDICT, "int64", b'{"input": [', b"[],", b"1]}", "ragged", size=JSON_BYTES // 2
    ),
    "objects": in_json(PREDICT, "int64", b'{"input": [1,', b"{},", b"{}]}", "got an object"),
    "a string": in_json(PREDICT, "bytes", b'{"input": ["', b"a", b'", 1]}', "got 1 at [1]"),
    "escapes": in_json(PREDICT, "bytes", b'{"input": ["', b"\\u4e2d", b'", 1]}', "got 1 at [1]"),
    "strings": in_json(
        PREDICT, "bytes", b'{"input": [', b'"%b",' % (b"b" * 200), b"1]}", "got 1 at ["
    ),
    "strings the ordinary way": in_json(
        PREDICT + "?ordinary",
        "bytes",
        b'{"input": [',
        b'"%b",' % (b"b" * 200),
        b"1]}",
        "got 1 at [",
    ),
    "members": in_json(
        PREDICT,
        "int64",
        b'{"input": [1], "parameters": {',
        b'"a":[[]],',
        b'"b":1}}',
        "must be a string",
    ),
    "names": in_json(
        PREDICT, "int64", b'{"input": [1], "outputs": [', b'"y",', b'"y"]}', "more than 10000"
    ),
    "V1 rows": in_json(
        V1,
        "int64",
        b'{"instances": [',
        b'{"x": 1234567},',
        b'{"z": 1}]}',
        "'z'",
        size=JSON_BYTES // 2,
    ),
    "V1 base64": in_json(
        V1, "bytes", b'{"instances": [', b'{"b64": "%b"},' % (b"YWJj" * 99), b"1]}", "got 1 at ["
    ),
    "V2 numbers": v2_json("INT64", b"1234567,", b"1.5", "got 1.5"),
    "V2 strings": v2_json("BYTES", b'"%b",' % (b"b" * 200), b"1", "got 1 at ["),
}


def in_file(path: str, media: str, content: Callable[[], bytes], said: str) -> Attack:
    """A file that is refused at its end."""

    async def attack(server: Cohort) -> None:
        async with httpx.AsyncClient(timeout=None) as client:
            headers = {"content-type": media}
            answer = await client.post(server.url + path, content=content(), headers=headers)
        assert said in answer.json()["error"]

    return attack


def saved_texts() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array(["a" * 20] * (TEXTS - 1) + ["\ud800"]))
    return file.getvalue()


FORM_HEAD = b'--b\r\nContent-Disposition: form-data; name="x"\r\n\r\n'
FORM = "multipart/form-data; boundary=b"
INVOKE = "/invocations?model=int64"
FILE_BYTES = JSON_BYTES // 4

IN_FILES: dict[str, Attack] = {
    "saved text": in_file(
        "/models/bytes/predict", "application/x-npy", saved_texts, "is not Unicode"
    ),
    "form of line ends": in_file(
        "/models/int64/predict",
        FORM,
        lambda: FORM_HEAD + b"\r\n" * FILE_BYTES + b"\r\n--b--",
        "part 'x'",
    ),
    "form of parts": in_file(
        "/models/int64/predict", FORM, lambda: (FORM_HEAD + b"\r\n") * 250_000, "1024 parts"
    ),
    "base64": in_file(
        "/models/bytes/predict",
        "",
        lambda: b'{"input": {"b64": "' + b"YWJj" * FILE_BYTES + b'!"}}',
        "not base64",
    ),
    "CSV": in_file(
        INVOKE, "text/csv", lambda: b"1234567\n" * (FILE_BYTES // 8) + b"x", "got 'x' at row"
    ),
    "CSV in one line": in_file(
        INVOKE, "text/csv", lambda: b"1," * (FILE_BYTES // 2), "more than 1048576 characters"
    ),
    "records": in_json(
        INVOKE,
        "int64",
        b'{"dataframe_records": [',
        b'{"a":1,"b":2},',
        b'{"c":1}]}',
        "has no column",
        size=JSON_BYTES // 2,
    ),
}

ATTACKS: dict[str, Attack] = {
    **{f"file, {name}": attack for name, attack in IN_FILES.items()},
    **{f"JSON, {name}": attack for name, attack in IN_JSON.items()},
    "unary, typed numbers": lambda server: unary(server, typed_numbers(), fails=False),
    "unary, typed text": lambda server: unary(server, typed_texts(), fails=True),
    "unary, raw text": lambda server: unary(server, raw_request(), fails=True),
    "stream, typed numbers": lambda server: stream(server, typed_numbers(), fails=False),
    "stream, typed text": lambda server: stream(server, typed_texts(), fails=True),
    "stream, raw text": lambda server: stream(server, raw_request(), fails=True),
    "V2, raw text": in_binary,
    "tiny chunks": in_tiny_chunks,
}


@pytest.mark.parametrize("name", ATTACKS)
async def test_large_tensor_is_answered(server: Cohort, name: str) -> None:
    """No other caller waits, and no memory is kept: the `bystanders` check both."""
    await ATTACKS[name](server)


def test_document_of_many_models_is_made_once(server: Cohort) -> None:
    """Later requests get the document that the first one wrote.

    The first took 190 ms of processor time and further ones 2 ms; making it again for each would
    take 50 ms.
    """
    documents, costs = set(), []
    with httpx.Client(timeout=None) as client:
        for _ in range(20):
            before = processor_time(server.process.pid)
            documents.add(client.get(server.url + "/openapi.json").raise_for_status().content)
            costs.append(processor_time(server.process.pid) - before)
    (document,) = documents
    assert f"/models/other-{MODELS - 1}/predict" in json.loads(document)["paths"]
    assert min(costs[1:]) < costs[0] / 10


REFUSED = 3000


def test_blocked_standard_error_stops_nothing(tmp_path: Path) -> None:
    """Thousands are refused while the log is not read; logging continues once it is read again."""
    models = tmp_path / "models"
    onnx_models.save(onnx_models.identity(), models / "same" / "1" / "model.onnx")
    reading, writing = os.pipe()
    lines: list[dict[str, object]] = []
    may_read = threading.Event()
    may_read.set()

    def read() -> None:
        with os.fdopen(reading, "rb") as pipe:
            while line := pipe.readline():
                if line.startswith(b"{"):  # a library may write its own lines
                    lines.append(json.loads(line))
                may_read.wait()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    with cohort(models, tmp_path, stderr=writing) as server, httpx.Client() as client:
        wait_until(lambda: any(one["event"] == "first models loaded" for one in lines))
        may_read.clear()
        fill(writing, b"\n")
        for number in range(REFUSED):
            path = ("/predict", "/v2/models/same/infer", "/v1/models/same:predict")[number % 3]
            assert client.post(server.url + path, content=b"{").status_code == 400
        assert client.get(server.url + "/health/live").status_code == 200
        before = len(lines)
        may_read.set()
        assert (
            client.post(
                server.url + "/models/unknown/predict", content=b'{"input": [1]}'
            ).status_code
            == 404
        )
        wait_until(lambda: any(one.get("code") == "ModelNotFound" for one in lines[before:]))
        assert server.stop() == 0
        os.close(writing)
        reader.join()
    assert lines[-1]["event"] == "stopped"
