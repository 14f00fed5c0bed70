"""Bodies, unpacked bodies and unread responses share one memory budget."""

from __future__ import annotations

import gzip
import json
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import numpy as np
import pytest

from tests import onnx_models
from tests.e2e.processes import Cohort, cohort
from tests.waiting import PATIENCE, wait_until

BUDGET = 64  # MiB
PART = b"1," * 2**22  # 8 MiB of a JSON body that continues


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """A server with a small budget, and a model that returns its input."""
    folder = tmp_path_factory.mktemp("memory")
    onnx_models.save(onnx_models.identity(), folder / "models" / "same" / "1" / "model.onnx")
    onnx_models.save(onnx_models.fill(), folder / "models" / "fill" / "1" / "model.onnx")
    with cohort(
        folder / "models", folder, memory_mb=BUDGET, max_connections=50, default_model="same"
    ) as server:
        yield server


def connect(server: Cohort) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=PATIENCE)
    connection.settimeout(PATIENCE)
    return connection


def held(server: Cohort) -> float:
    """The bytes that requests hold, as the server counts them."""
    lines = httpx.get(f"{server.url}/metrics", timeout=PATIENCE).text.splitlines()
    (line,) = [one for one in lines if one.startswith("memory_held_bytes ")]
    return float(line.split()[1])


def head(path: str, length: int, *more: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: cohort", f"Content-Length: {length}", *more]
    return "\r\n".join([*lines, "", ""]).encode()


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/predict", ()),
        ("/v2/models/same/infer", ()),
        ("/v1/models/same:predict", ()),
        ("/predict", ("Content-Encoding: identity",)),  # not the fast path
    ],
    ids=["simple", "V2", "V1", "ordinary"],
)
def test_bodies_beyond_the_budget_are_refused_while_they_arrive(
    server: Cohort, path: str, more: tuple[str, ...]
) -> None:
    """Bodies within the budget continue, other callers are answered, and all memory is released."""
    with ExitStack() as stack:
        connections = [stack.enter_context(connect(server)) for _ in range(12)]
        for connection in connections:
            connection.sendall(head(path, 32 * 2**20, *more) + b"[" + PART)
        wait_until(lambda: held(server) > BUDGET * 3 / 4 * 2**20)
        wait_until(lambda: len(select.select(connections, [], [], 0)[0]) >= 4)
        for refused in select.select(connections, [], [], 0)[0]:
            assert refused.recv(65536).startswith(b"HTTP/1.1 429 ")
        assert held(server) <= BUDGET * 2**20
        assert httpx.post(f"{server.url}/predict", json={"input": [[1, 2, 3]]}).status_code == 200
    wait_until(lambda: held(server) == 0)


@pytest.mark.parametrize(
    "path", ["/predict", "/invocations", "/v1/models/same:predict", "/v2/models/same/infer"]
)
def test_unpacked_bodies_count(server: Cohort, path: str) -> None:
    """A bomb that would fit the largest body does not fit the budget."""
    bomb = gzip.compress(b" " * (BUDGET + 8) * 2**20)
    answer = httpx.post(
        server.url + path,
        content=bomb,
        headers={"content-encoding": "gzip"},
        timeout=PATIENCE,
    )
    assert (answer.status_code, answer.json()["code"]) == (429, "Overloaded")
    wait_until(lambda: held(server) == 0)


@pytest.mark.parametrize("more", [(), ("Content-Encoding: identity",)], ids=["fast", "ordinary"])
def test_answers_that_find_no_room_are_refused(server: Cohort, more: tuple[str, ...]) -> None:
    """Small requests have large answers that are not read; the budget limits their number."""
    asked = {"inputs": [{"name": "n", "datatype": "INT64", "shape": [1, 1], "data": [3_000_000]}]}
    body = json.dumps(asked).encode()
    path = "/v2/models/fill/infer"
    with ExitStack() as stack:
        connections = [stack.enter_context(connect(server)) for _ in range(16)]
        for connection in connections:
            connection.sendall(head(path, len(body), *more) + body)
        codes = [connection.recv(12)[-3:] for connection in connections]
        assert {*codes} == {b"200", b"429"}
        assert held(server) <= 1.5 * BUDGET * 2**20
        assert httpx.post(f"{server.url}/predict", json={"input": [[1, 2, 3]]}).status_code == 200
    wait_until(lambda: held(server) == 0)
    alone = httpx.post(server.url + path, content=body, timeout=PATIENCE)
    assert alone.status_code == 200


def test_responses_that_nobody_reads_count(server: Cohort) -> None:
    """They fill the budget, further large bodies are refused, small ones are answered."""
    numbers = np.ones((1_000_000, 3), "<f4").tobytes()  # as text in the response
    request = json.dumps(
        {
            "inputs": [
                {
                    "name": "x",
                    "datatype": "FP32",
                    "shape": [1_000_000, 3],
                    "parameters": {"binary_data_size": len(numbers)},
                }
            ]
        }
    ).encode()
    length = len(request) + len(numbers)
    sent = head("/v2/models/same/infer", length, f"Inference-Header-Content-Length: {len(request)}")
    with ExitStack() as stack:
        while held(server) < BUDGET / 2 * 2**20:
            connection = stack.enter_context(connect(server))
            connection.sendall(sent + request + numbers)
            connection.recv(1)  # it is being answered
        answer = httpx.post(
            f"{server.url}/predict", content=b" " * BUDGET * 2**19, timeout=PATIENCE
        )
        assert answer.status_code == 429
        assert httpx.post(f"{server.url}/predict", json={"input": [[1, 2, 3]]}).status_code == 200
    wait_until(lambda: held(server) == 0)


def test_idle_connections_make_room_for_new_ones(server: Cohort) -> None:
    """The oldest are closed, as many as exceed the limit; new connections are answered."""
    with ExitStack() as stack:
        connections = [stack.enter_context(connect(server)) for _ in range(45)]
        assert httpx.get(f"{server.url}/health/live", timeout=PATIENCE).status_code == 200
        connections += [stack.enter_context(connect(server)) for _ in range(15)]
        assert httpx.get(f"{server.url}/health/live", timeout=PATIENCE).status_code == 200
        wait_until(lambda: len(select.select(connections, [], [], 0)[0]) >= 10)
        closed = select.select(connections, [], [], 0)[0]
        assert all(one.recv(1) == b"" for one in closed)
        assert set(closed) <= set(connections[:45])
