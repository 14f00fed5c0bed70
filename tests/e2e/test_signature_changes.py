"""Versions with other inputs get only requests that name them."""

from __future__ import annotations

import shutil
from pathlib import Path

import httpx

from tests import onnx_models
from tests.e2e.processes import cohort
from tests.e2e.test_swapping import (
    ASK,
    asking,
    connected,
    publish,
    until_answered_by,
    version_or_code,
)
from tests.waiting import until

WIDER = {"inputs": {"x": [[0.0] * 5]}}


async def is_ready(client: httpx.AsyncClient, version: int) -> bool:
    found = await client.get(f"/models/m/versions/{version}")
    return found.is_success and found.json()["state"] == "READY"


async def reason(client: httpx.AsyncClient, version: int) -> str:
    return str((await client.get(f"/models/m/versions/{version}")).json()["reason"])


async def test_callers_stay_with_the_version_that_takes_what_they_send(
    models: Path, tmp_path: Path
) -> None:
    """This holds under load and after a restart, until the config or the versions change."""
    onnx_models.save(onnx_models.mlp(), models / "m/1/model.onnx")
    with cohort(models, tmp_path) as server:
        async with asking(server, callers=4) as load, connected(server) as client:
            publish(onnx_models.mlp(features=5), models / "m/2", tmp_path / "aside")
            await until(lambda: is_ready(client, 2))
            seen = len(load.outcomes)
            await until(lambda: len(load.outcomes) > seen + 100)
            pinned = await client.post("/models/m/versions/2/predict", json=WIDER)
            described = (await client.get("/models/m")).json()
            publish(onnx_models.mlp(features=5), models / "m/1", tmp_path / "aside")

            async def refused_in_place() -> bool:
                return "publish it under a new number" in await reason(client, 1)

            await until(refused_in_place)
        assert "only requests that name the version reach it" in server.logged
        publish(onnx_models.mlp(), models / "m/1", tmp_path / "aside")
    assert set(load.by(version_or_code)) == {"1"}
    assert pinned.json()["version"] == "2"
    assert described["default_version"] == "1"
    held_back = described["versions"][1]["held_back"]
    assert "its input 'x' is [N, 5], unlike [N, 4] in version 1" in held_back

    with cohort(models, tmp_path) as server:
        async with connected(server) as client:
            assert (await client.post("/predict", json=ASK)).json()["version"] == "1"
            (models / "m/config.yaml").write_text("allow_signature_change: true\n")
            await until_answered_by(client, "2", WIDER)
            (models / "m/config.yaml").unlink()
            await until_answered_by(client, "1")
            shutil.rmtree(models / "m/1")
            await until_answered_by(client, "2", WIDER)
