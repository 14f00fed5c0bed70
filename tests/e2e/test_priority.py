"""Callers of several priorities, and a model that has more to do than it can."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from time import monotonic
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from app.callers import digest_of
from app.rpc import inference_pb2 as messages
from app.session import cores
from tests import onnx_models
from tests.e2e.processes import Cohort, cohort, free_port
from tests.e2e.scrape import Scrape
from tests.rest.wire import connect, request
from tests.rpc.client import PATH, raw_request
from tests.waiting import wait_until

APIS = ("hot", "ordinary", "v2", "v2 ordinary", "v1", "unary", "stream")
KEYS: Mapping[int, str] = {1: "key-of-high", 0: "key-of-middle", -1: "key-of-low"}
QUEUE = 4 * cores()
PATIENCE = 120.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """A server with a model whose runs take as long as is asked, one by one."""
    folder = tmp_path_factory.mktemp("priority")
    onnx_models.save(onnx_models.loop(), folder / "models" / "loop" / "1" / "model.onnx")
    config = {
        "providers": ["cpu"],
        "timeout_ms": PATIENCE * 1000,
        "batching": {"max_batch_size": 1, "max_queue_size": QUEUE, "max_queue_seconds": 600},
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
        message = raw_request("loop", {"n": np.array([[trips]], "i8")}).SerializeToString()
        return _ask_grpc(server, message, tuple(headers.items()), streamed=api == "stream")
    inputs = [{"name": "n", "datatype": "INT64", "shape": [1, 1], "data": [trips]}]
    path, body = {
        "hot": ("/models/loop/predict", {"inputs": {"n": [[trips]]}}),
        "ordinary": ("/models/loop/predict?x", {"inputs": {"n": [[trips]]}}),
        "v1": ("/v1/models/loop:predict", {"instances": [[trips]]}),
        "v2": ("/v2/models/loop/infer", {"inputs": inputs}),
        "v2 ordinary": ("/v2/models/loop/infer?x", {"inputs": inputs}),
    }[api]
    response = httpx.post(server.url + path, json=body, headers=headers, timeout=PATIENCE)
    return "OK" if response.status_code == httpx.codes.OK else str(response.status_code)


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


TRIPS = 60_000
"""Of runs that take long enough to tell which came first."""


@contextmanager
def busy(server: Cohort) -> Iterator[None]:
    """Keep every core at a run without end, until the callers leave."""
    endless = {"inputs": {"n": [[onnx_models.FOREVER]]}}
    sent = request("/models/loop/predict", endless, f"x-api-key: {KEYS[1]}")
    with ExitStack() as callers:
        for _ in range(cores()):
            callers.enter_context(connect(server.url)).sendall(sent)
        wait_until(lambda: in_progress(server) == cores() and not queued(server))
        yield


def queued(server: Cohort) -> int:
    """How many requests are in the queue."""
    return int(Scrape(server.url).value("model_queue_requests", model="loop"))


def in_progress(server: Cohort) -> int:
    """How many are in the queue or run."""
    return int(Scrape(server.url).value("model_inflight_requests", model="loop"))


class Asked:
    """Requests that wait in the queue, and when each was answered."""

    def __init__(self, server: Cohort, pool: ThreadPoolExecutor, trips: int = TRIPS) -> None:
        self._server = server
        self._trips = trips
        self._pool = pool
        self._futures: list[Future[float]] = []

    def add(self, api: str, priority: int, count: int = 1) -> None:
        """Send `count` requests, and wait until they are in the queue."""
        before = queued(self._server)
        for _ in range(count):
            self._futures.append(self._pool.submit(self._ask, api, priority))
        wait_until(lambda: queued(self._server) == before + count)

    def _ask(self, api: str, priority: int) -> float:
        assert ask(self._server, api, self._trips, priority) == "OK"
        return monotonic()

    def order(self) -> list[int]:
        """The numbers of the requests, in the order of their answers."""
        at = [future.result() for future in self._futures]
        return sorted(range(len(at)), key=at.__getitem__)


@pytest.mark.parametrize("api", APIS)
def test_a_higher_priority_goes_first(server: Cohort, pool: ThreadPoolExecutor, api: str) -> None:
    """It is answered before most of those that came before it."""
    asked = Asked(server, pool)
    with busy(server):
        asked.add("hot", 0, count=3 * cores())
        asked.add(api, 1)
    assert asked.order().index(3 * cores()) <= 2 * cores()


@pytest.mark.parametrize("api", APIS)
def test_a_lower_priority_goes_last(server: Cohort, pool: ThreadPoolExecutor, api: str) -> None:
    """Most of those that come after it are answered before it."""
    asked = Asked(server, pool)
    with busy(server):
        asked.add(api, -1)
        asked.add("hot", 0, count=3 * cores())
    assert asked.order().index(0) >= cores()


@pytest.mark.parametrize("api", APIS)
def test_lower_priorities_are_refused_first(
    server: Cohort, pool: ThreadPoolExecutor, api: str
) -> None:
    """With half a queue -1 is, with a full one 0 is, and 1 has half a queue more."""
    refused = {"unary": "RESOURCE_EXHAUSTED", "stream": "Overloaded"}.get(api, "429")
    asked = Asked(server, pool, trips=1)
    with busy(server):
        for priority in (-1, 0, 1):
            asked.add(api, priority, count=QUEUE // 2)
            assert ask(server, api, 1, priority) == refused
    assert len(asked.order()) == 3 * QUEUE // 2
