"""The bundled models, served by a real process to many callers at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnxruntime
import pytest

from tests.bundled import digits_test_split, iris_test_split
from tests.e2e.processes import MODELS, Cohort, cohort
from tests.e2e.scrape import Scrape
from tests.waiting import wait_until

CALLERS = 32
TILES = 2
"""Number of requests for each flower."""


async def ask_row_by_row(
    url: str, path: str, name: str, rows: np.ndarray[Any, Any]
) -> tuple[list[dict[str, Any]], Counter[str]]:
    """Send every row alone from CALLERS callers; return the answers in order and a log."""
    answers: list[dict[str, Any]] = [{} for _ in rows]
    log: Counter[str] = Counter()
    left = iter(range(len(rows)))

    async def caller(client: httpx.AsyncClient) -> None:
        for index in left:
            body = {"inputs": {name: rows[index : index + 1].tolist()}}
            answer = await client.post(path, json=body)
            log["OK" if answer.status_code == httpx.codes.OK else answer.json()["code"]] += 1
            answers[index] = answer.json()

    limits = httpx.Limits(max_connections=CALLERS)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=60) as client:
        await asyncio.gather(*(caller(client) for _ in range(CALLERS)))
    return answers, log


def in_process(model: str, version: int, rows: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """The outputs of ONNX Runtime itself, right here."""
    session = onnxruntime.InferenceSession(
        MODELS / model / str(version) / "model.onnx", providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, {session.get_inputs()[0].name: rows}))


@pytest.mark.parametrize("version", [1, 2])
async def test_digits_answers_32_callers_as_onnx_runtime_does(tmp_path: Path, version: int) -> None:
    """Accuracy and outputs are ONNX Runtime's in process, rows are batched, metrics are exact."""
    images, labels = digits_test_split()
    expected = in_process("digits", version, images)[0]
    path = f"/models/digits/versions/{version}/predict"
    described = f"/models/digits/versions/{version}"
    with cohort(MODELS, tmp_path) as server:
        wait_until(lambda: server.get(described).json()["profile"]["complete"])
        answers, log = await ask_row_by_row(server.url, path, "image", images)
        scrape = Scrape(server.url)

    got = np.array([answer["outputs"]["probabilities"][0] for answer in answers])
    np.testing.assert_allclose(got, expected, atol=1e-5)
    assert (got.argmax(1) == labels).mean() == (expected.argmax(1) == labels).mean()
    assert {answer["version"] for answer in answers} == {str(version)}

    of = {"model": "digits", "version": str(version)}
    assert log == {"OK": len(images)}
    assert scrape.by("model_inference_total", "code", **of) == log
    assert scrape.value("model_inference_duration_seconds_count", **of) == len(images)
    assert scrape.value("model_queue_duration_seconds_count", **of) == len(images)
    assert scrape.value("model_batch_requests_sum", **of) == len(images)
    runs = scrape.value("model_run_duration_seconds_count", **of)
    assert scrape.value("model_batch_rows_count", **of) == runs < len(images), "nothing was batched"


async def test_iris_labels_are_exact(bundled: Cohort) -> None:
    """Every held-out flower gets the very label, and the probabilities, ONNX Runtime gives it."""
    flowers, _ = iris_test_split()
    labels, probabilities = in_process("iris", 1, flowers)
    answers, log = await ask_row_by_row(
        bundled.url, "/models/iris/predict", "features", np.tile(flowers, (TILES, 1))
    )
    assert log == {"OK": TILES * len(flowers)}
    got = [answer["outputs"]["label"][0] for answer in answers]
    assert got == np.tile(labels, TILES).tolist()
    scores = np.array([answer["outputs"]["probabilities"][0] for answer in answers])
    np.testing.assert_allclose(scores, np.tile(probabilities, (TILES, 1)), atol=1e-5)
