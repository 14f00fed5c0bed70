"""A slow model of a fresh server: it serves at once, and batches once it was measured."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx

from tests import onnx_models
from tests.e2e.processes import Cohort, cohort
from tests.e2e.scrape import Scrape
from tests.waiting import until

CONFIG = """
providers: [cpu]
session: {intra_op_threads: 1}
batching: {max_batch_size: 2, latency_budget_ms: 60000, max_queue_seconds: 600, trust: refuted}
timeout_ms: 600000
warm_up: {rows: [1]}
"""
LONG_PATIENCE = 600.0
"""Seconds: a busy machine has no idle moment for a run as long as these."""

ROWS = [[float(number)] * 4 for number in range(6)]


async def test_a_slow_model_serves_before_it_is_measured_and_batches_after(tmp_path: Path) -> None:
    """Requests before that run one by one and get right answers.

    A run takes 0.14 s on an idle core, and rows hardly count. Its graph adds up all rows, times 0.
    """
    models = tmp_path / "models"
    onnx_models.save(onnx_models.slow(nodes=1200), models / "slow" / "1" / "model.onnx")
    (models / "slow" / "config.yaml").write_text(CONFIG)

    async def described(client: httpx.AsyncClient) -> dict[str, Any]:
        found: dict[str, Any] = (await client.get("/models/slow/versions/1")).json()
        return found

    async def ask_all(client: httpx.AsyncClient) -> None:
        for answer in await asyncio.gather(
            *(client.post("/predict", json={"inputs": {"x": [row]}}) for row in ROWS)
        ):
            assert answer.status_code == 200, answer.text
        answers = [await client.post("/predict", json={"inputs": {"x": [row]}}) for row in ROWS[:2]]
        assert [one.json()["outputs"]["y"] for one in answers] == [[row] for row in ROWS[:2]]

    async def measured(client: httpx.AsyncClient) -> bool:
        return bool((await described(client))["profile"]["complete"])

    def runs(server: Cohort) -> float:
        return Scrape(server.url).value("model_batch_rows_count", model="slow")

    def client_of(server: Cohort) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=server.url, timeout=LONG_PATIENCE)

    with cohort(models, tmp_path) as server:
        async with client_of(server) as client:
            before = await described(client)
            assert before["state"] == "READY"
            assert not before["profile"]["complete"]
            assert before["batching"]["on"] is False
            assert before["batching"]["reason"] == "it is being measured"
            await ask_all(client)
            await until(lambda: measured(client), seconds=LONG_PATIENCE)
            after = await described(client)
            assert after["batching"]["on"], after

            async def shared_a_run() -> bool:
                before = runs(server)
                await ask_all(client)
                return runs(server) - before < len(ROWS) + 2

            await until(shared_a_run, seconds=LONG_PATIENCE)
