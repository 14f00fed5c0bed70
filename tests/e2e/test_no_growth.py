"""Floods of any requests do not make the server grow, and it still answers."""

from __future__ import annotations

import asyncio
import gzip
import json
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grpc import StatusCode, aio

from tests import onnx_models
from tests.e2e import counted
from tests.e2e.counted import descriptors, memory
from tests.e2e.processes import Cohort, cohort, free_port
from tests.http.wire import request
from tests.rpc.client import Client, connected, raw_request
from tests.waiting import iterations, until

CONNECTIONS = 8
ROUNDS, RPC_ROUNDS = 8, 1
"""Number of times that each connection sends every malformed request, or message, in a flood."""

MORE_BLOCKS = 1000
"""Blocks that Python objects may have more after five more floods: one for 15 requests.

Up to 250 are seen, and up to 6500 for a moment, until all connections have ended. An object that
is kept of each request is 15,000.
"""

MORE_BYTES = 16 * 2**20
"""Memory that five more floods may take; some megabytes come and go outside of Python objects.

They send 115 MB, which are four times as many once they are unpacked.
"""

ROW = struct.pack("<3f", 1, 2, 3)
V2, V1, PREDICT = "/v2/models/toy/infer", "/v1/models/toy:predict", "/models/toy/predict"


@pytest.fixture
def server(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cohort]:
    """A model of numbers and one of texts; a body may have one megabyte."""
    onnx_models.save(onnx_models.identity(), models / "toy/1/model.onnx")
    onnx_models.save(onnx_models.strings(), models / "strings/1/model.onnx")
    # With an arena for each thread the C library keeps some megabytes more, or fewer, by chance.
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    monkeypatch.setenv("BLOCKS_FILE", str(tmp_path / "blocks"))
    settings: dict[str, Any] = {"max_body_mb": 1, "grpc_port": free_port()}
    with cohort(models, tmp_path, program=counted.PROGRAM, **settings) as server:
        yield server


def binary(tail: bytes, *, head: int | None = None, model: str = "toy", **tensor: object) -> bytes:
    """A request with `tail` behind its JSON; `head` where the JSON's length shall lie."""
    parameters = {"binary_data_size": len(tail)}
    base = {"name": "x", "datatype": "FP32", "shape": [1, 3], "parameters": parameters}
    document = json.dumps({"inputs": [base | tensor]}).encode()
    told = len(document) if head is None else head
    path = f"/v2/models/{model}/infer"
    return request(path, document + tail, f"Inference-Header-Content-Length: {told}")


def tensor(**changed: object) -> bytes:
    """A request in JSON."""
    base = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}
    return request(V2, json.dumps({"inputs": [base | changed]}).encode())


GOOD = tensor()
NESTED = b"[" * 1000 + b'"a"' + b"]" * 1000
PACKED = "Content-Encoding: gzip"
TEXT = {"model": "strings", "name": "text", "datatype": "BYTES", "shape": [1, 1]}

REFUSED: tuple[bytes, ...] = (
    tensor(data=[1, 2]),
    tensor(data=[1, 2, "3"]),
    tensor(data=[[1, 2], [3]]),
    tensor(shape=[-1, 3]),
    tensor(shape=[2**62, 2**62]),
    tensor(shape=[1] * 5000),
    tensor(datatype="X" * 10_000),
    tensor(name="\N{SNOWMAN}" * 1000),
    tensor(parameters={"shared_memory_region": "a"}),
    request(V2, b"{"),
    request(V2, b"\xff" * 1000),
    request(V2, NESTED),
    request(V2, b"[" * 100_000),
    request(V2, b'{"inputs":' + b"9" * 10_000 + b"}"),
    binary(ROW[:-1]),
    binary(ROW, head=10**17),
    binary(ROW, head=10**400),
    binary(ROW, head=-1),
    binary(ROW, head=20),
    binary(ROW, parameters={"binary_data_size": 2**64 - 1}),
    binary(ROW, shape=[2**40, 2**40]),
    binary(b"\xff\xff\xff\xffcat", **TEXT),  # type: ignore[arg-type]
    binary(b"\1\0\0\0\xff", **TEXT),  # type: ignore[arg-type]
    request(V2, ROW[:-1], "Inference-Header-Content-Length: 0"),
    request(V2, b"no gzip at all", PACKED),
    request(V2, gzip.compress(b"{}" * 1000)[:-9], PACKED),
    request(V2, gzip.compress(bytes(3_000_000)), PACKED),
    request(V2, b"{}", "Content-Encoding: br"),
    request(V1, b'{"instances": [[1, 2, 3], [1]]}'),
    request(V1, b'{"instances": [[1, 2, 3]], "signature_name": ' + b"[" * 500 + b"]" * 500 + b"}"),
    request("/v1/models/strings:predict", b'{"instances":' + NESTED + b"}"),
    request("/v1/models/strings:predict", '{"instances": [[{"b64": "ž"}]]}'.encode()),
    request(PREDICT, b'{"input": [[1, 2, NaN]]}'),
    request(PREDICT, b'{"input": ' + NESTED + b"}"),
    request(PREDICT, b'{"input": [[1, 2, 3]], "parameters": {"a": []}}'),
    request("/v2/models/" + "n" * 2000 + "/infer", b"{}"),
)
"""Each gets a 4xx, and its connection continues."""

BROKEN: tuple[bytes, ...] = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a TLS hello
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"POST " + V2.encode() + b" HTTP/1.1\r\nContent-Le",
    request(V2, b"{}", "content-length: 1000"),
    request(V2, b"{}", "content-length: 1000000000"),
    request(V2, b"{}", "content-length: -5"),
    request(V2, bytes(100_000), "content-length: 1000000"),
    request(V2, b"", f"X: {'a' * 100_000}"),
    b"POST " + V2.encode() + b" HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST " + V2.encode() + b" HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\nabc",
)
"""No request is whole here: the caller sends this, and leaves."""


CALLERS_FAULT = {StatusCode.INVALID_ARGUMENT, StatusCode.NOT_FOUND}


def test_floods_of_malformed_requests_leave_nothing_behind(server: Cohort, tmp_path: Path) -> None:
    """Later floods use no more memory and no more descriptors, and never get a 5xx."""
    idle = descriptors(server) + 2  # gRPC keeps some
    file = tmp_path / "blocks"
    for _ in range(2):
        asyncio.run(flood(server))
    asyncio.run(until_closed(server, idle))
    blocks, size = counted.blocks(server, file), memory(server)
    for _ in range(5):
        asyncio.run(flood(server))
    asyncio.run(until_closed(server, idle))
    counted.check_blocks(server, file, most=blocks + MORE_BLOCKS)
    assert memory(server) - size < MORE_BYTES
    assert '"level": "error"' not in server.logged


async def until_closed(server: Cohort, idle: int) -> None:
    """Wait until it has no more open than `idle`; the last to leave are noticed a little later."""
    await until(lambda: descriptors(server) <= idle)


async def flood(server: Cohort) -> None:
    """Send all of it, many at a time; no answer may be the server's failure."""
    _, port = server.url.rsplit(":", 1)
    async with connected(server.grpc) as client, asyncio.TaskGroup() as tasks:
        for _ in range(CONNECTIONS):
            tasks.create_task(refused(int(port)))
            tasks.create_task(left_behind(int(port)))
            tasks.create_task(messages(client))


async def refused(port: int) -> None:
    """Everything of REFUSED over one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(ROUNDS):
        for data in REFUSED:
            writer.write(data)
            status = await status_of(reader)
            assert 400 <= status < 500, (status, data[:300])
    writer.write(GOOD)
    assert await status_of(reader) == 200
    writer.close()
    await writer.wait_closed()


async def status_of(reader: asyncio.StreamReader) -> int:
    """Read one answer."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = next(line[15:] for line in head.split("\r\n") if line.startswith("content-length:"))
    await reader.readexactly(int(length))
    return int(head.split()[1])


async def left_behind(port: int) -> None:
    """Everything of BROKEN, each over a connection that ends with it."""
    for _ in range(ROUNDS):
        for data in BROKEN:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(data)
            if len(data) % 2:
                writer.transport.abort()
            writer.close()
            with suppress(OSError):  # the server may have closed it first
                await writer.wait_closed()


async def messages(client: Client) -> None:
    """Messages that are none, or do not fit, alone and on a stream."""
    good = raw_request("toy", {"x": np.ones((1, 3), "f4")}).SerializeToString()
    bad = [good[:cut] for cut in range(1, len(good), 3)]
    bad += [good + bytes([i]) * 50 for i in range(0, 256, 16)]
    bad += [good.replace(b"FP32", b"FP64"), b"\xff" * 5000]

    async def many() -> AsyncIterator[bytes]:
        for data in bad:
            yield data

    for _ in range(RPC_ROUNDS):
        for data in bad:
            with refusals():
                await client.raw("ModelInfer", data, timeout=30)
        answered = [one async for one in client.stream(many(), timeout=30)]
        assert len(answered) == len(bad)
        call = client.raw("ModelInfer", good)
        await iterations(1)
        call.cancel()
        with suppress(asyncio.CancelledError):
            await call


@contextmanager
def refusals() -> Iterator[None]:
    """What is the caller's fault may be refused."""
    try:
        yield
    except aio.AioRpcError as error:
        if error.code() not in CALLERS_FAULT:
            raise
