"""Requests of every kind are freed without the garbage collector, on a real server."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from cohort.auth import digest_of
from tests import onnx_models
from tests.e2e.garbage import PROGRAM, garbage
from tests.e2e.processes import MODELS, Cohort, cohort, free_port
from tests.http.wire import connect, request
from tests.processing.pictures import channel_means
from tests.rpc.client import PATH, Request, raw_request
from tests.waiting import PATIENCE

MANY = 20
ROLLOUT = "variants: {stable: {version: 1, weight: 1}, canary: {version: 2, weight: 1}}"
ROWS = [[1.0, 2.0, 3.0, 4.0]]


class Served:
    """A server without a garbage collector, the file of its garbage, and clients."""

    def __init__(self, server: Cohort, file: Path, http: httpx.Client, channel: Any) -> None:
        self.server, self.file, self.http, self.grpc = server, file, http, channel

    def post(self, path: str, status: int = 200, *, key: str = "all", **sent: Any) -> None:
        headers = {"x-api-key": key, **sent.pop("headers", {})}
        answer = self.http.post(path, headers=headers, **sent)
        assert answer.status_code == status, answer.text

    def chat(self, model: str = "m", **options: Any) -> None:
        self.post("/v1/chat/completions", json=_chat(model, **options))

    def leave_chat(self) -> None:
        body = _chat("m", stream=True, max_tokens=200)
        with connect(self.server.url) as connection:
            connection.sendall(request("/v1/chat/completions", body, "x-api-key: all"))
            assert connection.recv(1)

    def stream(self, message: Request) -> None:
        sent = message.SerializeToString()
        call = self.grpc.stream_stream(f"{PATH}/ModelStreamInfer")
        assert list(call(iter([sent]), metadata=[("x-api-key", "all")], timeout=PATIENCE))


def _chat(model: str, **options: Any) -> dict[str, Any]:
    message = {"role": "user", "content": "hello"}
    return {"model": model, "messages": [message], "max_tokens": 4, "temperature": 0, **options}


def _npy() -> bytes:
    file = BytesIO()
    np.save(file, np.array(ROWS, np.float32))
    return file.getvalue()


def _text() -> Request:
    asked = Request(model_name="m")
    asked.parameters["max_tokens"].int64_param = 4
    asked.inputs.add(name="text_input", datatype="BYTES", shape=[1]).contents.bytes_contents.append(
        b"hello"
    )
    return asked


PREDICT = "/models/mlp/predict"
FAILING = {"inputs": {"index": [[9]]}}
ASGI = {"expect": "100-continue"}

KINDS: Mapping[str, Callable[[Served], None]] = {
    "rows": lambda on: on.post(PREDICT, json={"inputs": {"x": ROWS}}),
    "rows, FastAPI": lambda on: on.post(PREDICT, headers=ASGI, json={"inputs": {"x": ROWS}}),
    "many rows": lambda on: on.post(PREDICT, json={"inputs": {"x": ROWS * 5000}}),
    "refused": lambda on: on.post(PREDICT, 400, json={"inputs": {"x": [[1]]}}),
    "over quota": lambda on: on.post(PREDICT, 429, key="spent", json={"inputs": {"x": ROWS}}),
    "npy": lambda on: on.post(
        PREDICT, content=_npy(), headers={"content-type": "application/x-npy"}
    ),
    "form": lambda on: on.post(PREDICT, files={"x": ("x.npy", _npy())}),
    "failed run": lambda on: on.post("/models/table/predict", 400, json=FAILING),
    "failed run, FastAPI": lambda on: on.post(
        "/models/table/predict", 400, json=FAILING, headers=ASGI
    ),
    "failed run, stream": lambda on: on.stream(raw_request("table", {"index": np.array([[9]])})),
    "no picture": lambda on: on.post(
        "/models/look/predict", 400, content=b"none", headers={"content-type": "image/jpeg"}
    ),
    "chat": lambda on: on.chat(),
    "streamed chat": lambda on: on.chat(stream=True),
    "several choices": lambda on: on.chat(n=2),
    "chat in a rollout": lambda on: on.chat("rolled"),
    "abandoned chat": Served.leave_chat,
    "several prompts": lambda on: on.post(
        "/v1/completions", json={"model": "m", "prompt": ["a", "b"], "max_tokens": 4}
    ),
    "text stream": lambda on: on.stream(_text()),
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("cycles")
    models, file = folder / "models", folder / "garbage.json"
    onnx_models.save(onnx_models.mlp(), models / "mlp/1/model.onnx")
    onnx_models.save(onnx_models.table(), models / "table/1/model.onnx")
    onnx_models.save(channel_means(("N", 3, 32, 48)), models / "look/1/model.onnx")
    (models / "look/config.yaml").write_text("inputs: {image: {image: {}}}\n")
    for version in ("m/1", "rolled/1", "rolled/2"):
        shutil.copytree(MODELS / "smalltalk/1", models / version)
    (folder / "rollouts.yaml").write_text(f"rolled: {{{ROLLOUT}}}\n")
    keys = {"all": {"rate": 1e6, "tokens_per_minute": 10**9}, "spent": {"rate": 0.001}}
    entries = [{"name": k, "sha256": digest_of(k).hex(), **more} for k, more in keys.items()]
    (folder / "keys.yaml").write_text(json.dumps(entries))
    settings: dict[str, Any] = {
        "api_keys": folder / "keys.yaml",
        "rollouts": folder / "rollouts.yaml",
        "grpc_port": free_port(),
        "access_log": True,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GARBAGE_FILE", str(file))
        with (
            cohort(models, folder, program=PROGRAM, **settings) as server,
            httpx.Client(base_url=server.url, timeout=PATIENCE) as client,
            grpc.insecure_channel(server.grpc) as channel,
        ):
            on = Served(server, file, client, channel)
            on.post(PREDICT, key="spent", json={"inputs": {"x": ROWS}})
            yield on


@pytest.mark.parametrize("kind", KINDS)
def test_requests_leave_no_reference_cycles(served: Served, kind: str) -> None:
    """After many requests of a kind, no type of object is garbage as often as they were sent."""
    ask = KINDS[kind]
    for _ in range(3):
        ask(served)
    garbage(served.server, served.file)
    for _ in range(MANY):
        ask(served)
    found = garbage(served.server, served.file)
    assert {name: count for name, count in found.items() if count >= MANY} == {}
