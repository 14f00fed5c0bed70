"""A connection that has closed leaves nothing behind, without the collector of reference cycles."""

from __future__ import annotations

import asyncio
import gc
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from cohort.http2 import Http2Connection, Stream
from cohort.http2.send_queue import SendQueue
from cohort.process.rpc import start_rpc
from cohort.process.service import Service
from cohort.rpc.context import TaskCall
from cohort.rpc.small_messages import SmallCall
from cohort.rpc.streams import InferStream, StreamRequest
from cohort.rpc.tracing import Trace
from cohort.serving import Exchange, Lease
from cohort.settings import read_settings
from tests import onnx_models
from tests.attacks.http2 import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    call_headers,
    frame,
    message,
)
from tests.e2e.processes import free_port
from tests.rpc.client import raw_request
from tests.waiting import iterations, until

KINDS = (
    Exchange, Http2Connection, InferStream, Lease, SendQueue, SmallCall, Stream, StreamRequest,
    TaskCall, Trace,
)  # fmt: skip
SMALL = raw_request("same", {"x": np.ones((1, 3), "<f4")}).SerializeToString()
LARGE = raw_request("same", {"x": np.ones((200_000, 3), "<f4")}).SerializeToString()
WRONG = raw_request("nobody", {"x": np.ones((1, 3), "<f4")}).SerializeToString()
LONG = raw_request("loop", {"n": np.array([[onnx_models.FOREVER]])}).SerializeToString()
METHODS = ("ModelInfer", "ModelStreamInfer", "ServerLive", "Nothing")
MESSAGES = {"small": SMALL, "large": LARGE, "wrong": WRONG, "long": LONG, "odd": b"\xff\xff"}


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    """A server for gRPC in this process, which writes traces."""
    onnx_models.save(onnx_models.identity(), tmp_path / "models/same/1/model.onnx")
    onnx_models.save(onnx_models.loop(), tmp_path / "models/loop/1/model.onnx")
    given = {
        "models": tmp_path / "models",
        "state": tmp_path / "s",
        "cache": tmp_path / "c",
        "host": "127.0.0.1",
        "grpc_port": free_port(),
    }
    clean = {key: value for key, value in os.environ.items() if not key.startswith("COHORT_")}
    with mock.patch.dict(os.environ, clean, clear=True):
        service = Service(read_settings(given), access_log=mock.Mock())
    async with service.running():
        await until(lambda: service.core.registry.settled)
        server = await start_rpc(service)
        assert server is not None
        yield service
        await server.stop(0)


def begun(number: int, method: str) -> bytes:
    more = [("x-request-id", "abc"), ("token", "x" * 6000)]
    return frame(HEADERS, END_HEADERS, number, call_headers(method, more))


def sent(number: int, data: bytes, *, end: bool = True) -> bytes:
    parts = [data[at : at + 16_384] for at in range(0, len(data), 16_384)]
    last = END_STREAM if end else 0
    return b"".join(frame(DATA, last if part is parts[-1] else 0, number, part) for part in parts)


def reset(number: int) -> bytes:
    return frame(RST_STREAM, 0, number, b"\0\0\0\x08")


Flow = Callable[[int, str, bytes], bytes]

FLOWS: dict[str, Flow] = {
    "whole": lambda number, method, data: begun(number, method) + sent(number, message(data)),
    "reset": lambda number, method, data: (
        begun(number, method) + sent(number, message(data)) + reset(number)
    ),
    "open": lambda number, method, data: (
        begun(number, method) + sent(number, message(data), end=False)
    ),
    "begun": lambda number, method, data: begun(number, method),
    "cut": lambda number, method, data: begun(number, method) + sent(number, message(data)[:-1]),
}


def counted() -> Counter[str]:
    return Counter(type(one).__name__ for one in gc.get_objects() if isinstance(one, KINDS))


async def test_connections_that_have_closed_leave_nothing(service: Service) -> None:
    """Their calls may be answered, refused, reset, or left while they wait or run."""
    gc.collect()
    before = counted()
    gc.disable()
    try:
        for flow in FLOWS.values():
            for method in METHODS:
                await asyncio.gather(
                    *[leave(service, flow, method, data) for data in MESSAGES.values()]
                )
        await until(lambda: counted() == before)
        await until(lambda: service.core.data_plane.memory.used == 0)  # runs on threads end later
        await until(lambda: service.core.limit.leases == 0)
    finally:
        gc.enable()


async def leave(service: Service, flow: Flow, method: str, data: bytes) -> None:
    """Begin two calls on a connection, and close it a little later."""
    port = service.settings.grpc_port
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    calls = [flow(number, method, data) for number in (1, 3)]
    writer.write(PREFACE + frame(SETTINGS, 0, 0) + b"".join(calls))
    await writer.drain()
    await reader.read(1)
    await iterations(30)
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()
