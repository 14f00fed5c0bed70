"""A process that is told to stop."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from pathlib import Path

import httpx
import pytest

from tests.e2e.processes import MODELS, Cohort, cohort
from tests.waiting import until

BODY = {"model": "iris", "inputs": {"features": [[5.1, 3.5, 1.4, 0.2]]}}


async def call_until_refused(server: Cohort, log: Counter[str], *, keep_alive: bool) -> None:
    """Ask again and again; note each outcome; end when the door is closed."""
    limits = httpx.Limits(max_keepalive_connections=1 if keep_alive else 0)
    async with httpx.AsyncClient(base_url=server.url, limits=limits, timeout=30) as client:
        while True:
            try:
                answer = await client.post("/predict", json=BODY)
            except httpx.ConnectError:
                log["door closed"] += 1
                return
            except httpx.TransportError as error:
                log[f"lost: {type(error).__name__}"] += 1
            else:
                log[str(answer.status_code)] += 1


@pytest.mark.parametrize("keep_alive", [True, False])
async def test_sigterm_under_load_loses_no_request(tmp_path: Path, keep_alive: bool) -> None:
    """Whoever got a connection gets an answer; then the doors close and the process exits 0."""
    with cohort(MODELS, tmp_path, drain_notice_seconds=1) as server:
        log: Counter[str] = Counter()
        async with asyncio.TaskGroup() as callers:
            for _ in range(16):
                callers.create_task(call_until_refused(server, log, keep_alive=keep_alive))
            await until(lambda: log["200"] >= 200)
            server.process.send_signal(signal.SIGTERM)
        status = await asyncio.to_thread(server.process.wait, 60)
    assert status == 0, server.logged
    assert set(log) == {"200", "door closed"}, log
    assert log["door closed"] == 16


async def test_readiness_goes_first_and_predictions_go_on(tmp_path: Path) -> None:
    """During the notice /health/ready answers 503, /health/live 200, and predictions are served."""
    with cohort(MODELS, tmp_path, drain_notice_seconds=2) as server:
        server.process.send_signal(signal.SIGTERM)
        refused = await asyncio.to_thread(server.wait_for, "/health/ready", 503)
        assert refused.json()["code"] == "NotReady"
        assert refused.headers["retry-after"]
        assert httpx.get(server.url + "/health/live").status_code == httpx.codes.OK
        answer = httpx.post(server.url + "/predict", json=BODY)
        assert answer.status_code == httpx.codes.OK
        assert answer.headers["connection"] == "close", "callers are asked to move on"
        assert await asyncio.to_thread(server.process.wait, 60) == 0
