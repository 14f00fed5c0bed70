"""Small calls that share runs, with the answers that they get alone."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest
from grpc import Compression, StatusCode, aio

from cohort.http2.frames import (
    DATA_FRAME,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PREFACE,
    frame,
    settings_frame,
)
from cohort.http2.header_blocks import encode
from cohort.rpc import inference_pb2 as messages
from cohort.tensors import Array
from tests import onnx_models
from tests.e2e.processes import Cohort, cohort, free_port
from tests.e2e.scrape import Scrape
from tests.rpc.client import Client, Request, connected, named, raw_request, typed_request

Told = tuple[StatusCode, str, bytes | None, tuple[str, ...]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """Two models of rows, one with a rollout."""
    folder = tmp_path_factory.mktemp("shared")
    for name in ("mlp", "split"):
        for version in (1, 2):
            file = folder / "models" / name / str(version) / "model.onnx"
            onnx_models.save(onnx_models.mlp(), file)
    rollouts = folder / "rollouts.yaml"
    rollouts.write_text(
        "split: {sticky: {header: x-user}, variants: {a: {version: 1, weight: 1}, "
        "b: {version: 2, weight: 1}}}\n"
    )
    port = free_port()
    with cohort(folder / "models", folder, grpc_port=port, rollouts=rollouts) as started:
        yield started


def row(*values: float) -> Array:
    return np.array([values], "<f4")


def mix() -> list[Request]:
    """Good ones of every form, odd ones, and bad ones."""
    x = {"x": row(1, 2, 3, 4)}
    three = {"x": np.arange(12, dtype="<f4").reshape(3, 4)}
    bad = {"x": row(1, 2, 3)}
    out = onnx_models.mlp().graph.output[0].name
    return [
        raw_request("mlp", x),
        raw_request("mlp", three),
        raw_request("mlp", x, id="mine"),
        typed_request("mlp", three, id="ü"),
        raw_request("mlp", x, outputs=named([out])),
        raw_request("mlp", x, outputs=named(["no"])),
        raw_request("mlp", x, model_version="1"),
        raw_request("mlp", three, model_version="2", id="v"),
        raw_request("split", x, model_version="1"),
        raw_request("mlp", x, model_version="9"),
        raw_request("mlp", bad),
        raw_request("mlp", {"y": row(1, 2, 3, 4)}),
        raw_request("mlp", {"x": np.ones((1, 4), "<f8")}),
        raw_request("nobody", x),
        raw_request("mlp", {"x": row(float("nan"), float("inf"), 0, 1)}),
        Request(model_name="mlp"),
        raw_request("split", x),
        raw_request("split", three, id="1"),
    ]


async def told(call: aio.UnaryUnaryCall[bytes, Any]) -> Told:
    """Return its status, details and message, and the names of its trailing metadata."""
    try:
        answer = (await call).SerializeToString(deterministic=True)
    except aio.AioRpcError:
        answer = None
    trailing = await call.trailing_metadata() or ()
    return (
        await call.code(),
        await call.details() or "",
        answer,
        tuple(sorted(name for name, _ in trailing)),
    )


async def ask(client: Client, request: Request, **options: Any) -> Told:
    metadata = (("x-user", "u1"), *options.pop("metadata", ()))
    return await told(client.call("ModelInfer", request, metadata=metadata, **options))


async def test_a_call_gets_what_it_would_get_alone(server: Cohort) -> None:
    """Eighty run at a time, on four connections.

    The expected answers are of compressed calls, which share no run.
    """
    async with connected(server.grpc) as alone:
        for request in mix():
            await ask(alone, request)  # the first of a model is served alone in any case
        expected = [await ask(alone, one, compression=Compression.Gzip) for one in mix()]
    codes = {code for code, *_ in expected}
    assert codes == {StatusCode.OK, StatusCode.INVALID_ARGUMENT, StatusCode.NOT_FOUND}
    peers = [connected(server.grpc, use_local_subchannel_pool=1) for _ in range(4)]
    clients = [await peer.__aenter__() for peer in peers]
    try:
        for _ in range(5):
            calls = [ask(client, one) for one in mix() for client in clients for _ in range(2)]
            got = await asyncio.gather(*calls)
            for place, one in enumerate(expected):
                assert set(got[8 * place : 8 * place + 8]) == {one}
    finally:
        for peer in peers:
            await peer.__aexit__(None, None, None)


def runs(server: Cohort) -> tuple[float, float]:
    """Return the requests that ran, and the runs they had."""
    scrape = Scrape(server.url)
    return (
        scrape.value("model_batch_requests_sum", model="mlp", version="2"),
        scrape.value("model_batch_requests_count", model="mlp", version="2"),
    )


async def test_they_do_share_runs(server: Cohort) -> None:
    """Calls that arrive together, and messages of a stream, share runs."""
    request = raw_request("mlp", {"x": row(1, 2, 3, 4)})
    async with connected(server.grpc) as client:
        await client.call("ModelInfer", request)
        before = runs(server)
        for _ in range(20):
            await asyncio.gather(*[client.call("ModelInfer", request) for _ in range(32)])
        rows, count = (now - then for now, then in zip(runs(server), before, strict=True))
        assert rows == 640
        assert count < 320


async def test_a_stream_has_its_answers_in_order(server: Cohort) -> None:
    """Small, large and bad requests are mixed."""
    wide = np.arange(2000 * 4, dtype="<f4").reshape(2000, 4)
    requests = []
    for number in range(300):
        x = wide if number % 50 == 7 else row(number, 0, 0, 0)
        x = row(1, 2, 3) if number % 60 == 9 else x
        requests.append(raw_request("mlp", {"x": x}, id=str(number)))

    async def sent() -> AsyncIterator[bytes]:
        for request in requests:
            yield request.SerializeToString()

    async with connected(server.grpc) as client:
        answers = [answer async for answer in client.stream(sent())]
    assert [answer.infer_response.id for answer in answers] == [str(n) for n in range(300)]
    for number, answer in enumerate(answers):
        assert bool(answer.error_message) == (number % 60 == 9)
        if not answer.error_message:
            rows = 2000 if number % 50 == 7 else 1
            assert answer.infer_response.outputs[0].shape[0] == rows


async def test_ids_and_deadlines_come_with_small_calls(server: Cohort) -> None:
    """The id goes back; a deadline that cannot be met is reported, one that can changes nothing."""
    request = raw_request("mlp", {"x": row(1, 2, 3, 4)})
    async with connected(server.grpc) as client:
        for timeout in (None, 600, 3000):
            call = client.call(
                "ModelInfer", request, timeout=timeout, metadata=(("x-request-id", "mine"),)
            )
            assert (await call).model_name == "mlp"
            assert ("x-request-id", "mine") in [*(await call.trailing_metadata() or ())]
    assert await status_of(server.grpc, request, b"600S") == 0
    assert await status_of(server.grpc, request, b"1n") == StatusCode.DEADLINE_EXCEEDED.value[0]


async def status_of(target: str, request: Request, timeout: bytes) -> int:
    """Return the status of a call; libraries do not send one whose deadline has passed."""
    headers = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/inference.GRPCInferenceService/ModelInfer"),
        (b"content-type", b"application/grpc"),
        (b"grpc-timeout", timeout),
    ]
    message = request.SerializeToString()
    host, _, port = target.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(PREFACE + settings_frame({}) + frame(HEADERS, END_HEADERS, 1, encode(headers)))
    prefixed = b"\0" + len(message).to_bytes(4, "big") + message
    writer.write(frame(DATA_FRAME, END_STREAM, 1, prefixed))
    data = b""
    while (found := re.search(rb"grpc-status.(\d+)", data, re.DOTALL)) is None:
        received = await reader.read(1 << 16)
        assert received, data
        data += received
    writer.close()
    return int(found[1])


async def test_a_rollout_chooses_for_each_small_call(server: Cohort) -> None:
    """The caller's key gives the same variant each time; both variants answer."""
    request = raw_request("split", {"x": row(1, 2, 3, 4)})
    async with connected(server.grpc) as client:

        async def version(user: int) -> str:
            call = client.call("ModelInfer", request, metadata=(("x-user", str(user)),))
            answer = await call
            assert answer.parameters["variant"].string_param in "ab"
            return str(answer.model_version)

        first = await asyncio.gather(*[version(user) for user in range(64)])
        second = await asyncio.gather(*[version(user) for user in range(64)])
    assert first == second
    assert {*first} == {"1", "2"}


async def test_small_calls_that_are_left_hold_nothing(server: Cohort) -> None:
    """Calls in the same run are answered."""
    request = raw_request("mlp", {"x": row(1, 2, 3, 4)})
    async with connected(server.grpc) as client:
        for _ in range(10):
            calls = [client.call("ModelInfer", request) for _ in range(64)]
            for call in calls[::2]:
                call.cancel()
            got = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(one, messages.ModelInferResponse) for one in got[1::2])
    async with connected(server.grpc) as client:
        assert (await client.call("ModelInfer", request)).model_name == "mlp"
    scrape = Scrape(server.url)
    assert scrape.value("model_inflight_requests", model="mlp") == 0
