"""A request with a gap, for a model that gives back what it gets: the caller's fault, not ours."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest

from tests import onnx_models
from tests.e2e.processes import Cohort, cohort
from tests.waiting import PATIENCE


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """One model that gives what it gets, and one that divides."""
    folder = tmp_path_factory.mktemp("missing")
    onnx_models.save(onnx_models.identity("FP32", ("N", 3)), folder / "models/same/1/model.onnx")
    onnx_models.save(onnx_models.reciprocal(), folder / "models/inverse/1/model.onnx")
    with cohort(folder / "models", folder) as started:
        yield started


GAP = [1, None, 3]
TENSOR = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": GAP}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/models/same/predict", json.dumps({"input": [GAP]})),
        ("/models/same/predict", '{"inputs": {"x": [[1, NaN, 3]]}}'),
        ("/v1/models/same:predict", json.dumps({"instances": [GAP]})),
        ("/v2/models/same/infer", json.dumps({"inputs": [TENSOR]})),
        ("/models/same/predict", json.dumps({"input": [GAP] * 20_000})),
    ],
)
def test_nan_that_comes_of_a_gap_is_the_callers(server: Cohort, path: str, body: str) -> None:
    """It is 400 on every API that writes JSON, at once and from a thread."""
    answer = httpx.post(server.url + path, content=body, timeout=PATIENCE)
    assert answer.status_code == 400, answer.text
    assert "missing values" in answer.json()["error"]
    assert answer.json()["code"] == "InvalidInput"


def test_infinity_without_a_gap_is_the_models(server: Cohort) -> None:
    """It is 500, also after a request with a gap on the same thread."""
    for _ in range(2):
        gap = '{"input": [[1, null, 3]]}'
        httpx.post(f"{server.url}/models/same/predict", content=gap, timeout=PATIENCE)
        answer = httpx.post(f"{server.url}/models/inverse/predict", content='{"input": [[0]]}')
        if answer.status_code == 400:  # its shape is another
            answer = httpx.post(
                f"{server.url}/models/inverse/predict", content='{"input": [[0, 0, 0]]}'
            )
        assert answer.status_code == 500, answer.text
        assert answer.json()["code"] == "InferenceFailed"
