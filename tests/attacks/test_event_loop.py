"""What would hold the event loop: while it goes on, others are answered."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import httpx
import pytest
from grpc import StatusCode

from tests import onnx_models
from tests.e2e.processes import Cohort, cohort, free_port
from tests.pipes import fill
from tests.rpc.client import connected, told
from tests.rpc.test_wire import field, tensor
from tests.waiting import wait_until

MODELS = 60
NUMBERS = 10_000_000
TEXTS = 1_500_000
TEXT = b"\x42\x03abc"  # an element of bytes_contents
RAW_TEXT = b"\x03\0\0\0abc"
BAD = b"\xff\xff\xff"  # in place of the last one: all are read, and no model runs

ASKING = """
import http.client, sys, time
while True:
    began = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
    connection.request("GET", "/health/live", headers={"connection": "close"})
    connection.getresponse().read()
    connection.close()
    print(began, time.monotonic(), flush=True)
"""

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


class Health:
    """When /health/live was asked, on a new connection each time, and when it answered."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, float]] = []

    def worst(self, began: float, ended: float) -> float:
        """The longest that anyone waited who asked between two points in time, in seconds."""
        wait_until(lambda: self.asked and self.asked[-1][0] > ended)
        return max(b - a for a, b in self.asked if b > began and a < ended)


@contextmanager
def asking(server: Cohort) -> Iterator[Health]:
    """Ask for the health of `server` all the time, by another process."""
    health = Health()
    port = server.url.rpartition(":")[2]
    program = [sys.executable, "-c", ASKING, port]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                if line.endswith("\n"):  # the last one may be cut short
                    began, ended = map(float, line.split())
                    health.asked.append((began, ended))

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            wait_until(lambda: health.asked)
            yield health
        finally:
            process.kill()
            reader.join()


def typed_numbers() -> bytes:
    contents = field(3, b"\x01" * NUMBERS)
    return field(1, b"int64") + tensor("INT64", [NUMBERS], field(5, contents))


def typed_texts() -> bytes:
    contents = TEXT * (TEXTS - 1) + TEXT[:2] + BAD
    return field(1, b"bytes") + tensor("BYTES", [TEXTS], field(5, contents))


def raw_texts() -> bytes:
    return RAW_TEXT * (TEXTS - 1) + RAW_TEXT[:4] + BAD


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


ATTACKS: dict[str, Attack] = {
    "unary, typed numbers": lambda server: unary(server, typed_numbers(), fails=False),
    "unary, typed text": lambda server: unary(server, typed_texts(), fails=True),
    "unary, raw text": lambda server: unary(server, raw_request(), fails=True),
    "stream, typed numbers": lambda server: stream(server, typed_numbers(), fails=False),
    "stream, typed text": lambda server: stream(server, typed_texts(), fails=True),
    "stream, raw text": lambda server: stream(server, raw_request(), fails=True),
    "V2, raw text": in_binary,
}


@pytest.mark.parametrize("name", ATTACKS)
async def test_large_tensor_holds_nobody_up(server: Cohort, name: str) -> None:
    """Nobody waits for as much as half of the time that it takes itself."""
    shares = []
    with asking(server) as health:
        for _ in range(5):
            began = monotonic()
            await ATTACKS[name](server)
            ended = monotonic()
            worst = await asyncio.to_thread(health.worst, began, ended)
            shares.append(worst / (ended - began))
            if shares[-1] < 0.5:
                return
    pytest.fail(f"waited for these shares of the attack: {shares}")


def cpu_seconds(server: Cohort) -> float:
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_document_of_many_models_is_made_once(server: Cohort) -> None:
    """Whoever asks again gets what was written."""
    documents, costs = [], []
    with httpx.Client(timeout=None) as client:
        for _ in range(2):
            before = cpu_seconds(server)
            documents.append(client.get(server.url + "/openapi.json").raise_for_status().content)
            costs.append(cpu_seconds(server) - before)
    assert documents[0] == documents[1]
    assert f"/models/other-{MODELS - 1}/predict" in json.loads(documents[0])["paths"]
    assert costs[1] < costs[0] / 2


REFUSED = 3000


def test_blocked_standard_error_stops_nothing(tmp_path: Path) -> None:
    """Thousands are refused while nobody reads the log; it goes on when somebody does again."""
    models = tmp_path / "models"
    onnx_models.save(onnx_models.identity(), models / "same" / "1" / "model.onnx")
    reading, writing = os.pipe()
    lines: list[dict[str, object]] = []
    may_read = threading.Event()
    may_read.set()

    def read() -> None:
        with os.fdopen(reading, "rb") as pipe:
            while line := pipe.readline():
                if line.strip():
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
