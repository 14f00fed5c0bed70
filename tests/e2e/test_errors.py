"""Requests that fail in a real process: overload, deadlines, invalid values, callers that leave."""

from __future__ import annotations

import asyncio
import json
import socket
from collections import Counter
from pathlib import Path

import httpx

from tests import onnx_models
from tests.e2e.endless import endless_runs, in_progress
from tests.e2e.processes import cohort
from tests.e2e.scrape import Scrape
from tests.waiting import PATIENCE, until, wait_until


async def test_a_full_queue_is_429_and_a_late_answer_504(models: Path, tmp_path: Path) -> None:
    """A caller beyond max_queue_size gets 429 with a time to retry; a late caller gets 504.

    The metrics count the same.
    """
    onnx_models.save(onnx_models.loop(), models / "slow/1/model.onnx")
    (models / "slow/config.yaml").write_text(
        "timeout_ms: 600000\nbatching: {max_batch_size: 1, max_queue_size: 4}\n"
    )
    with cohort(models, tmp_path) as server:
        body = {"inputs": {"n": [[1]]}}
        late = {"inputs": {"n": [[onnx_models.FOREVER]]}, "timeout_ms": 1}
        async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE) as client:
            first = await client.post("/predict", json=late)
            assert (first.status_code, first.json()["code"]) == (504, "DeadlineExceeded")
            await until(lambda: in_progress(server, "slow") == 0)
            with endless_runs(server, "slow") as callers:
                asked = [asyncio.create_task(client.post("/predict", json=body)) for _ in range(24)]
                await until(lambda: sum(one.done() for one in asked) == 20)
                for caller in callers:
                    caller.close()
                answers = await asyncio.gather(*asked)
        codes = Counter("OK" if one.is_success else one.json()["code"] for one in answers)
        assert codes == {"OK": 4, "Overloaded": 20}
        refused = [one for one in answers if one.status_code == httpx.codes.TOO_MANY_REQUESTS]
        assert len(refused) == 20
        assert all(int(one.headers["retry-after"]) >= 1 for one in refused)
        wait_until(lambda: in_progress(server, "slow") == 0)
        counted = Scrape(server.url).by("model_inference_total", "code", model="slow")
        assert counted == codes | {"DeadlineExceeded": 1, "Cancelled": len(callers)}


def test_a_poisoned_request_fails_alone_with_the_models_own_words(
    models: Path, tmp_path: Path
) -> None:
    """The caller gets ONNX Runtime's message about the input, without paths of the machine."""
    onnx_models.save(onnx_models.gather(size=3), models / "gather/1/model.onnx")
    with cohort(models, tmp_path) as server:
        answer = httpx.post(server.url + "/predict", json={"inputs": {"index": [7]}})
        told = answer.json()
        assert "out of data bounds" in told["error"] or "out of bounds" in told["error"]
        assert "onnxruntime" not in told["error"]
        assert str(models) not in told["error"]
        fine = httpx.post(server.url + "/predict", json={"inputs": {"index": [2]}})
        assert fine.json()["outputs"] == {"y": [20.0]}


def test_a_caller_who_hangs_up_is_counted_and_forgotten(models: Path, tmp_path: Path) -> None:
    """A connection that closes mid-wait cancels its request; none stays in progress."""
    onnx_models.save(onnx_models.loop(), models / "slow/1/model.onnx")
    (models / "slow/config.yaml").write_text("timeout_ms: 600000\n")
    with cohort(models, tmp_path) as server:
        body = json.dumps({"inputs": {"n": [[onnx_models.FOREVER]]}}).encode()
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as caller:
            caller.sendall(
                b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b"
                % (len(body), body)
            )
            wait_until(
                lambda: Scrape(server.url).value("model_inflight_requests", model="slow") == 1
            )
        wait_until(lambda: Scrape(server.url).value("model_cancelled_total", model="slow") == 1)
        wait_until(lambda: Scrape(server.url).value("model_inflight_requests", model="slow") == 0)
