"""Answers that are kept, over every API, on a real server."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import numpy as np
import pytest

from cohort.tensors import Arrays
from tests import onnx_models
from tests.e2e.asking import APIS, asking
from tests.e2e.processes import cohort, free_port


def counted(metrics: str, what: str) -> float:
    (found,) = re.findall(rf'model_cache_{what}_total{{model="m",version="1"}} (\S+)', metrics)
    return float(found)


@pytest.mark.parametrize("api", APIS)
async def test_the_second_equal_request_is_answered_without_a_run(api: str, tmp_path: Path) -> None:
    """A request with cache-control: no-store is run."""
    onnx_models.save(onnx_models.mlp(), tmp_path / "models/m/1/model.onnx")
    (tmp_path / "models/m/config.yaml").write_text("cache: {max_mb: 16}\n")
    rows: Arrays = {"x": np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.float32)}
    with cohort(tmp_path / "models", tmp_path, grpc_port=free_port()) as server:
        async with asking(server, api) as ask:
            first, second = [await ask("m", rows) for _ in range(2)]
        for name, output in first.items():
            np.testing.assert_array_equal(np.asarray(output), np.asarray(second[name]))
        metrics = server.get("/metrics").text
        assert (counted(metrics, "hits"), counted(metrics, "misses")) == (1, 1)
        for kept in ("no-store", "max-age=0, No-Store"):
            body = {"inputs": {"x": rows["x"].tolist()}}
            headers = {"cache-control": kept}
            url = f"{server.url}/models/m/predict"
            assert httpx.post(url, json=body, headers=headers).status_code == 200
        metrics = server.get("/metrics").text
        assert (counted(metrics, "hits"), counted(metrics, "misses")) == (1, 1)
        answered = r'model_inference_total\{code="OK",model="m",variant="",version="1"\} 4'
        assert re.search(answered, metrics)
