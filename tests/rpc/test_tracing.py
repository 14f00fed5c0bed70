"""Calls whose trace is not sampled."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from grpc import StatusCode
from structlog.testing import capture_logs

from cohort.connections.address_counts import Addresses
from cohort.observability.tracing import Carrier
from cohort.process.rpc import make_rpc
from cohort.process.service import Service
from cohort.rpc import calls
from cohort.rpc.tracing import Trace
from cohort.settings import read_settings
from tests import onnx_models
from tests.rpc.client import Client, Request, connected, raw_request
from tests.waiting import PATIENCE, until

TRACE_ID = "ab" * 16
HEADER = f"00-{TRACE_ID}-{'cd' * 8}-00"


@pytest.fixture(autouse=True)
def _slow_runs_are_inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small calls need no task, however long a run takes on this machine."""
    monkeypatch.setattr("cohort.onnx_engine.batched_session.INLINE_SECONDS", 60.0)
    monkeypatch.setattr("cohort.serving.coalescing.COALESCED_RUN_SECONDS", 60.0)
    monkeypatch.setattr("cohort.batching.inline.STALL_SECONDS", PATIENCE)


class Never:
    """A tracer that samples nothing.

    drawn: The header of each draw.
    """

    def __init__(self) -> None:
        self.drawn: list[str | None] = []

    def may_sample(self, traceparent: str | None) -> bool:
        self.drawn.append(traceparent)
        return False

    def begin(self, name: str, carrier: Carrier, attributes: Mapping[str, str | int]) -> NoReturn:
        raise AssertionError("not sampled")

    async def close(self, seconds: float) -> None:
        pass


@asynccontextmanager
async def serving(folder: Path, tracer: Never) -> AsyncIterator[Client]:
    """Serve a model of rows, `mlp`, without an access log."""
    onnx_models.save(onnx_models.mlp(), folder / "models/mlp/1/model.onnx")
    given = {"models": folder / "models", "state": folder / "s", "cache": folder / "c"}
    service = Service(read_settings(given), tracer=tracer)
    async with service.running():
        await until(lambda: service.core.registry.settled)
        server = make_rpc(service, Addresses(10))
        port = await server.start("127.0.0.1", 0)
        async with connected(f"127.0.0.1:{port}") as client:
            yield client
        await server.stop(0)


def request(model: str, **fields: str) -> Request:
    return raw_request(model, {"x": np.array([[1, 2, 3, 4]], "<f4")}, **fields)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (request("mlp"), StatusCode.OK),
        (request("mlp", model_version="9"), StatusCode.NOT_FOUND),
        (Request(model_name="mlp"), StatusCode.INVALID_ARGUMENT),
    ],
    ids=["small", "refused", "served by a task"],
)
async def test_it_is_drawn_once_whether_a_call_is_sampled(
    tmp_path: Path, sent: Request, code: StatusCode
) -> None:
    """Each call is drawn once, with its traceparent, however it is served and ends."""
    tracer = Never()
    async with serving(tmp_path, tracer) as client:
        for _ in range(3):
            call = client.call("ModelInfer", sent, metadata=(("traceparent", HEADER),))
            assert await call.code() is code
    assert tracer.drawn == [HEADER] * 3


async def test_the_line_of_a_refusal_has_the_trace_id(tmp_path: Path) -> None:
    """A refused call's line has the id from its traceparent, without a span or an access log."""
    async with serving(tmp_path, Never()) as client:
        with capture_logs() as logs:
            call = client.call("ModelInfer", request("other"), metadata=(("traceparent", HEADER),))
            assert await call.code() is StatusCode.NOT_FOUND
    assert [one["trace_id"] for one in logs if one["event"] == "refused"] == [TRACE_ID]


async def test_a_small_call_collects_no_log_facts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that succeeds, is not sampled and is not logged has no trace, which costs time."""
    made: list[str] = []

    class Counted(Trace):
        def __init__(self, method: str, *more: object) -> None:
            made.append(method)
            super().__init__(method, *more)  # type: ignore[arg-type]

    async with serving(tmp_path, Never()) as client:
        await client.call("ModelInfer", request("mlp"))  # the first may be served by a task
        monkeypatch.setattr(calls, "Trace", Counted)
        await client.call("ModelInfer", request("mlp"))
    assert made == []
