"""What a server has in memory once its models are loaded and measured."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import onnx

from tests import onnx_models
from tests.e2e.processes import Cohort, cohort
from tests.e2e.scrape import Scrape
from tests.waiting import PATIENCE, wait_until

MODELS = 4
ROW_MEGABYTES = 128


def wide() -> onnx.ModelProto:
    """A model of whose rows each takes ROW_MEGABYTES for a moment."""
    return onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 20]> wide (float[N, 1] x) => (float[N, 1] y)
        <int64[2] wide = {{1, {ROW_MEGABYTES << 18}}}, int64[1] one = {{1}}>
        {{ z = Relu(x) much = Expand(z, wide) y = ReduceMax<keepdims = 1>(much, one) }}"""
    )


def test_first_runs_and_measurements_leave_no_memory_taken(tmp_path: Path) -> None:
    """Neither sessions nor threads that ran them keep memory, however many models there are."""
    for number in range(MODELS):
        onnx_models.save(wide(), tmp_path / f"models/wide{number}/1/model.onnx")
    with cohort(tmp_path / "models", tmp_path) as server:

        def measured() -> bool:
            found = [server.get(f"/models/wide{one}/versions/1").json() for one in range(MODELS)]
            return all(one["profile"]["complete"] for one in found)

        wait_until(measured)
        wait_until(lambda: own_megabytes(server) < 100 + 2 * ROW_MEGABYTES)
        for number in range(MODELS):
            body = {"model": f"wide{number}", "inputs": {"x": [[2.0]]}}
            answer = httpx.post(server.url + "/predict", json=body, timeout=PATIENCE)
            assert answer.json()["outputs"]["y"] == [[2.0]]


def test_each_version_tells_what_memory_it_took(tmp_path: Path) -> None:
    """It is about the weights' size, since some memory was free in the process before."""
    weights = 4096 * 4096 * 4
    onnx_models.save(
        onnx_models.mlp(features=4096, hidden=4096), tmp_path / "models/a/1/model.onnx"
    )
    with cohort(tmp_path / "models", tmp_path) as server:
        found = server.get("/models/a/versions/1").json()["memory_bytes"]
        assert 0.75 * weights <= found <= 4 * weights
        assert Scrape(server.url).value("model_memory_bytes", model="a") == found


def own_megabytes(server: Cohort) -> float:
    """Return the server's memory that no file backs, in MiB."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.findall(r"RssAnon:\s+(\d+) kB", status)[0]) / 1024
