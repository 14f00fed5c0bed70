"""Versions that come and go under load."""

from __future__ import annotations

import shutil
from contextlib import AbstractAsyncContextManager
from itertools import repeat
from pathlib import Path

import httpx
import onnx

from tests import onnx_models
from tests.e2e.load import Load, Outcome, encode, under_load
from tests.e2e.processes import Cohort, cohort
from tests.e2e.scrape import Scrape
from tests.waiting import until

ASK = {"inputs": {"x": [[0.0] * 4]}}


def publish(model: onnx.ModelProto, version: Path, aside: Path) -> None:
    """Write a version aside and move it in whole, as a careful operator does."""
    onnx_models.save(model, aside / "model.onnx")
    if version.exists():
        shutil.rmtree(version)
    aside.rename(version)


def asking(server: Cohort, *, callers: int) -> AbstractAsyncContextManager[Load]:
    """Have callers ask for the default version while the block runs."""
    return under_load(server.url, repeat(encode("/predict", ASK)), callers=callers)


def connected(server: Cohort) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=server.url)


def version_or_code(outcome: Outcome) -> str:
    """Return the version that answered, or the error code."""
    return outcome.version if outcome.code == "OK" else outcome.code


async def until_answered_by(client: httpx.AsyncClient, version: str, ask: object = ASK) -> None:
    """Wait until `version` answers."""

    async def answered() -> bool:
        response = await client.post("/predict", json=ask)
        return bool(response.json().get("version") == version)

    await until(answered)


async def test_swaps_under_load_fail_no_request(models: Path, tmp_path: Path) -> None:
    """Versions added, replaced, taken away and broken while 16 callers ask: every answer is OK.

    The metrics count what the callers saw, and what was replaced is gone from memory's books.
    """
    onnx_models.save(onnx_models.mlp(), models / "mlp/1/model.onnx")
    with cohort(models, tmp_path, inspection_seconds=60) as server:
        async with asking(server, callers=16) as load, connected(server) as client:

            async def third_is_known() -> bool:
                return (await client.get("/models/mlp/versions/3")).is_success

            for _ in range(2):
                publish(onnx_models.mlp(), models / "mlp/2", tmp_path / "aside")
                await until_answered_by(client, "2")
                (models / "mlp/3").mkdir()
                (models / "mlp/3/model.onnx").write_bytes(b"broken")
                (models / "mlp/config.yaml").write_text("timeout_ms: 20000\n")
                await until(third_is_known)
                shutil.rmtree(models / "mlp/3")
                shutil.rmtree(models / "mlp/2")
                (models / "mlp/config.yaml").unlink()
                await until_answered_by(client, "1")
        scrape = Scrape(server.url)
    assert set(load.by(version_or_code)) == {"1", "2"}
    codes = scrape.by("model_inference_total", "code", model="mlp", version="1")
    assert set(codes) == {"OK"}
    counted = scrape.value("model_inference_total", model="mlp", code="OK")
    assert counted >= len(load.outcomes)
    assert scrape.value("model_inference_total", model="mlp") == counted
    assert scrape.value("model_inflight_requests", model="mlp") == 0
