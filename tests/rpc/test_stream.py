"""ModelStreamInfer: many requests on one call."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from grpc import aio

from tests import onnx_models
from tests.e2e.processes import cohort, free_port
from tests.rpc.client import Client, arrays_of, connected, raw_request, told


def numbered(number: int, model: str = "identity_fp32") -> bytes:
    """Return a request that is known by its number."""
    array = np.full((1, 3), number, "f4")
    return raw_request(model, {"x": array}, id=str(number)).SerializeToString()


async def test_answers_come_in_the_order_of_the_requests(client: Client) -> None:
    """This holds for more requests than are read at a time; each is marked as its last."""
    stream = client.stream()
    for number in range(300):
        await stream.write(numbered(number))
    await stream.done_writing()
    answers = [answer async for answer in stream]
    assert [int(one.infer_response.id) for one in answers] == list(range(300))
    for number, one in enumerate(answers):
        assert not one.error_message
        assert arrays_of(one.infer_response)["y"].tolist() == [[number] * 3]
        assert one.infer_response.parameters["triton_final_response"].bool_param


async def test_a_bad_request_ends_no_stream(client: Client) -> None:
    """Its answer is an error with its id, and those after it are served."""
    stream = client.stream()
    requests = [numbered(0), numbered(1, "nobody"), b"\xff\xff", numbered(3)]
    for request in requests:
        await stream.write(request)
    await stream.done_writing()
    first, unknown, broken, last = [answer async for answer in stream]
    assert (first.error_message, last.error_message) == ("", "")
    assert "'nobody'" in unknown.error_message
    assert unknown.infer_response.id == "1"
    assert "ModelInferRequest" in broken.error_message
    assert last.infer_response.id == "3"


async def test_an_answer_does_not_wait_for_the_stream_to_end(client: Client) -> None:
    """A stream answers each message before the client sends the next one."""
    stream = client.stream()
    for number in range(3):
        await stream.write(numbered(number))
        assert (await told(stream)).infer_response.id == str(number)
    await stream.done_writing()
    assert await stream.read() is aio.EOF


async def test_a_stream_takes_so_many_at_a_time(models: Path, tmp_path: Path) -> None:
    """A client that sends without end holds 64 places and no more: a queue of 70 refuses none."""
    onnx_models.save(onnx_models.slow(nodes=20), models / "slow/1/model.onnx")
    (models / "slow/config.yaml").write_text(
        "timeout_ms: 600000\n"
        "batching: {max_batch_size: 1, max_queue_size: 70, max_queue_seconds: 3600}\n"
    )
    request = raw_request("slow", {"x": np.ones((1, 4), "f4")}).SerializeToString()
    with cohort(models, tmp_path, grpc_port=free_port()) as server:
        async with connected(server.grpc) as client:
            stream = client.stream()
            for _ in range(400):
                await stream.write(request)
            await stream.done_writing()
            answers = [answer.error_message async for answer in stream]
    assert answers == [""] * 400
