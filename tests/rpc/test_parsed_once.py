"""A small message is parsed once, whichever part answers it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from grpc import aio

from cohort.process.rpc import start_rpc
from cohort.process.service import Service
from cohort.settings import read_settings
from tests import onnx_models
from tests.e2e.processes import free_port
from tests.rpc.client import Client, connected, raw_request
from tests.waiting import until

TWO_INPUTS = raw_request("two", {"a": np.ones((1, 2), "<f4"), "b": np.ones((1, 2), "<f4")})
"""No model of two inputs is answered together with others."""


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    """That of a server in this process."""
    onnx_models.save(onnx_models.two_inputs(), tmp_path / "models/two/1/model.onnx")
    port = free_port()
    given = {"models": tmp_path / "models", "state": tmp_path / "s", "cache": tmp_path / "c"}
    clean = {key: value for key, value in os.environ.items() if not key.startswith("COHORT_")}
    with mock.patch.dict(os.environ, clean, clear=True):
        service = Service(read_settings({**given, "host": "127.0.0.1", "grpc_port": port}))
    async with service.running():
        await until(lambda: service.core.registry.settled)
        server = await start_rpc(service)
        assert server is not None
        async with connected(f"127.0.0.1:{port}") as client:
            yield client
        await server.stop(0)


async def test_a_call_that_is_served_alone_keeps_what_was_parsed(client: Client) -> None:
    """Nothing parses it again."""
    with mock.patch("cohort.rpc.infer.read_at_once", side_effect=AssertionError):
        answer = await client.call("ModelInfer", TWO_INPUTS)
    assert answer.model_name == "two"


async def test_a_message_of_a_stream_does_so_too(client: Client) -> None:
    """Messages of a stream do so one after the other."""

    async def sent() -> AsyncIterator[bytes]:
        for _ in range(2):
            yield TWO_INPUTS.SerializeToString()

    with mock.patch("cohort.rpc.infer.read_at_once", side_effect=AssertionError):
        answers = [one async for one in client.stream(sent())]
    assert [one.error_message for one in answers] == ["", ""]


async def test_what_is_no_message_is_told_so(client: Client) -> None:
    """The next reader reports it."""
    with pytest.raises(aio.AioRpcError, match="is not a valid inference"):
        await client.raw("ModelInfer", b"\xff\xff\xff")
