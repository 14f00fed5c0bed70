"""Callers of several priorities, and a model that has more to do than it can."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from socket import socket
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from cohort.auth import digest_of
from cohort.rpc import inference_pb2 as messages
from cohort.session import cores
from tests import onnx_models
from tests.e2e.endless import endless_runs, queued
from tests.e2e.processes import Cohort, cohort, free_port
from tests.http.wire import connect, request
from tests.rpc.client import PATH, raw_request
from tests.waiting import PATIENCE, wait_until

APIS = ("hot", "ordinary", "v2", "v2 ordinary", "v1", "unary", "stream")
KEYS: Mapping[int, str] = {1: "key-of-high", 0: "key-of-middle", -1: "key-of-low"}
QUEUE = 4 * cores()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """A server with a model whose runs take as long as is asked, one by one."""
    folder = tmp_path_factory.mktemp("priority")
    onnx_models.save(onnx_models.loop(), folder / "models" / "loop" / "1" / "model.onnx")
    config = {
        "providers": ["cpu"],
        "timeout_ms": 3_600_000,
        "batching": {"max_batch_size": 1, "max_queue_size": QUEUE, "max_queue_seconds": 3600},
    }
    (folder / "models" / "loop" / "config.yaml").write_text(json.dumps(config))
    entries = [
        {"name": f"p{number}", "sha256": digest_of(KEYS[priority]).hex(), "priority": priority}
        for number, priority in enumerate(KEYS)
    ]
    (folder / "keys.yaml").write_text(json.dumps(entries))
    settings: dict[str, Any] = {"api_keys": folder / "keys.yaml", "grpc_port": free_port()}
    with cohort(folder / "models", folder, **settings) as started:
        yield started


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    """Threads for requests that wait."""
    with ThreadPoolExecutor(64) as threads:
        yield threads


def ask(server: Cohort, api: str, trips: int, priority: int) -> str:
    """Send a row; "OK", or the error's code."""
    headers = {"x-api-key": KEYS[priority]}
    if api in {"unary", "stream"}:
        metadata = tuple(headers.items())
        return _ask_grpc(server, grpc_message(trips), metadata, streamed=api == "stream")
    path, body = http_request(api, trips)
    response = httpx.post(server.url + path, json=body, headers=headers, timeout=PATIENCE)
    return "OK" if response.status_code == httpx.codes.OK else str(response.status_code)


def grpc_message(trips: int) -> bytes:
    """A row for the gRPC service."""
    return raw_request("loop", {"n": np.array([[trips]], "i8")}).SerializeToString()


def http_request(api: str, trips: int) -> tuple[str, dict[str, Any]]:
    """The path and the body of a row."""
    inputs = [{"name": "n", "datatype": "INT64", "shape": [1, 1], "data": [trips]}]
    requests: dict[str, tuple[str, dict[str, Any]]] = {
        "hot": ("/models/loop/predict", {"inputs": {"n": [[trips]]}}),
        "ordinary": ("/models/loop/predict?x", {"inputs": {"n": [[trips]]}}),
        "v1": ("/v1/models/loop:predict", {"instances": [[trips]]}),
        "v2": ("/v2/models/loop/infer", {"inputs": inputs}),
        "v2 ordinary": ("/v2/models/loop/infer?x", {"inputs": inputs}),
    }
    return requests[api]


def _ask_grpc(server: Cohort, message: bytes, metadata: Any, *, streamed: bool) -> str:
    with grpc.insecure_channel(server.grpc) as channel:
        if streamed:
            call: Any = channel.stream_stream(f"{PATH}/ModelStreamInfer")
            data = next(iter(call(iter([message]), metadata=metadata, timeout=PATIENCE)))
            response = messages.ModelStreamInferResponse.FromString(data)
            return response.error_message.partition(":")[0] or "OK"
        call = channel.unary_unary(f"{PATH}/ModelInfer")
        try:
            call(message, metadata=metadata, timeout=PATIENCE)
        except grpc.RpcError as error:
            return str(error.code().name)
        return "OK"


@contextmanager
def busy(server: Cohort) -> Iterator[list[socket]]:
    """Keep every core at a run without end, until its caller leaves."""
    with endless_runs(server, "loop", f"x-api-key: {KEYS[1]}") as callers:
        yield callers


@contextmanager
def endless(server: Cohort, api: str, priority: int, count: int = 1) -> Iterator[None]:
    """Have `count` requests without end wait in the queue, whose callers leave afterwards."""
    before = queued(server, "loop")
    headers = {"x-api-key": KEYS[priority]}
    calls: list[Any] = []  # a call without a reference is cancelled
    with ExitStack() as callers:
        for _ in range(count):
            if api in {"unary", "stream"}:
                channel: Any = callers.enter_context(grpc.insecure_channel(server.grpc))
                message, metadata = grpc_message(onnx_models.FOREVER), tuple(headers.items())
                if api == "stream":
                    stream = channel.stream_stream(f"{PATH}/ModelStreamInfer")
                    calls.append(stream(iter([message]), metadata=metadata))
                else:
                    unary = channel.unary_unary(f"{PATH}/ModelInfer")
                    calls.append(unary.future(message, metadata=metadata))
            else:
                path, body = http_request(api, onnx_models.FOREVER)
                sent = request(path, body, *(f"{name}: {one}" for name, one in headers.items()))
                callers.enter_context(connect(server.url)).sendall(sent)
        wait_until(lambda: queued(server, "loop") == before + count)
        yield


class Asked:
    """Requests that wait in the queue."""

    def __init__(self, server: Cohort, pool: ThreadPoolExecutor) -> None:
        self._server = server
        self._pool = pool
        self._futures: list[Future[str]] = []

    def add(self, api: str, priority: int, count: int = 1) -> None:
        """Send `count` requests, and wait until they are in the queue."""
        before = queued(self._server, "loop")
        for _ in range(count):
            self._futures.append(self._pool.submit(ask, self._server, api, 1, priority))
        wait_until(lambda: queued(self._server, "loop") == before + count)

    def answers(self) -> list[str]:
        """Wait for all answers: "OK", or codes of errors."""
        return [future.result() for future in self._futures]


@pytest.mark.parametrize("api", APIS)
def test_a_higher_priority_goes_first(server: Cohort, pool: ThreadPoolExecutor, api: str) -> None:
    """It is answered before earlier requests, which never end."""
    asked = Asked(server, pool)
    with busy(server) as callers, endless(server, "hot", 0, count=3 * cores()):
        asked.add(api, 1)
        callers[0].close()
        assert asked.answers() == ["OK"]


@pytest.mark.parametrize("api", APIS)
def test_a_lower_priority_goes_last(server: Cohort, pool: ThreadPoolExecutor, api: str) -> None:
    """Later requests are answered before it; it does not end."""
    asked = Asked(server, pool)
    with busy(server) as callers, endless(server, api, -1):
        asked.add("hot", 0, count=3 * cores())
        callers[0].close()
        assert asked.answers() == ["OK"] * (3 * cores())


@pytest.mark.parametrize("api", APIS)
def test_lower_priorities_are_refused_first(
    server: Cohort, pool: ThreadPoolExecutor, api: str
) -> None:
    """Half a queue refuses -1, a full one refuses 0, and 1 may use half a queue more."""
    refused = {"unary": "RESOURCE_EXHAUSTED", "stream": "Overloaded"}.get(api, "429")
    asked = Asked(server, pool)
    with busy(server):
        for priority in (-1, 0, 1):
            asked.add(api, priority, count=QUEUE // 2)
            assert ask(server, api, 1, priority) == refused
    assert asked.answers() == ["OK"] * (3 * QUEUE // 2)
