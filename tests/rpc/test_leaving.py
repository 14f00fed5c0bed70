"""Callers who leave, or run out of time: their answers, and their runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from grpc import StatusCode, aio

from tests import onnx_models
from tests.e2e.processes import Cohort, cohort, free_port
from tests.e2e.scrape import Scrape
from tests.rpc.client import Client, connected, raw_request
from tests.waiting import until, wait_until

N = {"n": np.array([[onnx_models.FOREVER]])}


@pytest.fixture
def slow(models: Path) -> Path:
    """A model whose run takes longer than any caller will wait."""
    onnx_models.save(onnx_models.loop(), models / "slow/1/model.onnx")
    (models / "slow/config.yaml").write_text("batching: {max_batch_size: 1}\n")
    return models


def counts(server: Cohort, name: str, **labels: str) -> float:
    """Return a metric of the slow model."""
    return Scrape(server.url).value(name, model="slow", **labels)


async def reached(server: Cohort, name: str, count: int) -> None:
    """Wait until a metric of the slow model is `count`."""
    await asyncio.to_thread(wait_until, lambda: counts(server, name) == count)


async def test_a_client_that_cancels_leaves_its_batch(slow: Path, tmp_path: Path) -> None:
    """Its run stops, for no other caller waits for it, and the metrics count it as cancelled."""
    with cohort(slow, tmp_path, grpc_port=free_port()) as server:
        async with connected(server.grpc) as client:
            call = client.call("ModelInfer", raw_request("slow", N))
            await reached(server, "model_inflight_requests", 1)
            call.cancel()
            await asyncio.to_thread(
                wait_until, lambda: counts(server, "model_cancelled_total") == 1
            )
            await reached(server, "model_inflight_requests", 0)
            assert counts(server, "model_inference_total", code="Cancelled") == 1


async def test_the_message_of_a_call_that_is_cancelled_is_freed(slow: Path, tmp_path: Path) -> None:
    """It is freed at once: no budget counts it then, and the collector may not run for long."""
    large = raw_request("slow", {"n": np.full((400_000, 1), onnx_models.FOREVER)})

    def resident(server: Cohort) -> float:
        """Memory of the server in MB."""
        status = Path(f"/proc/{server.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    with cohort(slow, tmp_path, grpc_port=free_port()) as server:
        async with connected(server.grpc) as client:

            async def cancel(times: int) -> float:
                for _ in range(times):
                    call = client.call("ModelInfer", large)
                    await reached(server, "model_inflight_requests", 1)
                    call.cancel()
                    await reached(server, "model_inflight_requests", 0)
                return resident(server)

            before = await cancel(3)
            assert await cancel(40) - before < 60  # the total is 128 MB


async def test_a_client_that_closes_a_stream_takes_its_requests_along(
    slow: Path, tmp_path: Path
) -> None:
    """Both running and waiting requests stop: no run continues without a caller."""
    with cohort(slow, tmp_path, grpc_port=free_port()) as server:
        async with connected(server.grpc) as client:
            stream = client.stream()
            for _ in range(3):
                await stream.write(raw_request("slow", N).SerializeToString())
            await asyncio.to_thread(
                wait_until, lambda: counts(server, "model_inflight_requests") == 3
            )
            stream.cancel()
            await asyncio.to_thread(
                wait_until, lambda: counts(server, "model_cancelled_total") == 3
            )
            await reached(server, "model_inflight_requests", 0)


async def late(client: Client, *, parameter: float, deadline: float) -> aio.AioRpcError:
    """Send with these limits in seconds, and return DEADLINE_EXCEEDED."""
    request = raw_request("slow", N)
    request.parameters["timeout"].int64_param = round(parameter * 1e6)
    with pytest.raises(aio.AioRpcError) as caught:
        await client.call("ModelInfer", request, timeout=deadline)
    assert caught.value.code() is StatusCode.DEADLINE_EXCEEDED
    return caught.value


async def test_the_smaller_limit_wins_and_reaches_the_batcher(slow: Path, tmp_path: Path) -> None:
    """The limits are `timeout` in microseconds, the call's deadline and the model's own."""
    with (slow / "slow/config.yaml").open("a") as config:
        config.write("timeout_ms: 150\n")
    with cohort(slow, tmp_path, grpc_port=free_port()) as server:
        async with connected(server.grpc) as client:
            told = await late(client, parameter=0.05, deadline=60)
            assert told.details() == "no response within 50 ms"
            told = await late(client, parameter=60, deadline=60)
            assert told.details() == "no response within 150 ms"

            async def counted() -> bool:
                """A busy machine may not even read such a call before its deadline."""
                await late(client, parameter=60, deadline=0.1)
                return counts(server, "model_inference_total", code="DeadlineExceeded") >= 3

            await until(counted)
            await reached(server, "model_inflight_requests", 0)
            late_ones = sum(
                counts(server, "model_inference_total", code=code)
                for code in ("DeadlineExceeded", "Cancelled")  # as gRPC or the batcher is first
            )
            assert counts(server, "model_inference_total") == late_ones
