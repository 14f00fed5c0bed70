"""An answer never depends on who else asks: many callers at once, on every API."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cohort.session import Session, open_session
from cohort.tensors import Array, Arrays, by_name
from tests import onnx_models
from tests.e2e.asking import APIS, CALLERS, ROUNDS, asking, described
from tests.e2e.mixing_models import BROUGHT
from tests.e2e.processes import Cohort, cohort, free_port
from tests.e2e.scrape import Scrape

ASKED_TOGETHER = "batching: {max_queue_delay_ms: 20}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models on disk."""
    folder = tmp_path_factory.mktemp("brought")
    for name, brought in BROUGHT.items():
        onnx_models.save(brought.model(), folder / "models" / name / "1/model.onnx")
        example = f"\nexample: {brought.example}" if brought.example else ""
        (folder / "models" / name / "config.yaml").write_text(ASKED_TOGETHER + example)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Cohort]:
    with cohort(folder / "models", folder, grpc_port=free_port()) as started:
        yield started


@pytest.fixture(scope="module")
def sessions(folder: Path) -> Mapping[str, Session]:
    """The same models, for one request at a time."""
    return {name: open_session(folder / "models" / name / "1/model.onnx") for name in BROUGHT}


def check(got: Mapping[str, Any], expected: Arrays) -> None:
    """Check that the outputs are those of the request alone."""
    for name, right in expected.items():
        values = np.asarray(got.get(name, got.get("")))
        assert values.shape == right.shape or values.size == right.size == 0  # JSON has no [0, 3]
        values = values.reshape(right.shape)
        if right.dtype.kind == "f":
            np.testing.assert_allclose(values.astype(float), right.astype(float), 1e-4, 1e-5)
        else:
            assert texts(values) == texts(right)


def texts(array: Array) -> list[str]:
    """The elements in words."""
    return [one.decode() if isinstance(one, bytes) else str(one) for one in array.ravel().tolist()]


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("model", BROUGHT)
async def test_everyone_gets_the_answer_of_their_request_alone(
    server: Cohort, sessions: Mapping[str, Session], model: str, api: str
) -> None:
    """This holds for models that mix rows and others, whatever the other requests are."""
    await described(server, model)
    session = sessions[model]
    requests = [BROUGHT[model].request(number) for number in range(CALLERS)]
    alone = [by_name(session.outputs, session.run(request)) for request in requests]
    async with asking(server, api) as ask:
        for _ in range(ROUNDS):
            answers = await asyncio.gather(*[ask(model, request) for request in requests])
            for got, expected in zip(answers, alone, strict=True):
                check(got, expected)


@pytest.mark.parametrize("model", BROUGHT)
async def test_who_shares_runs_is_said_with_the_reason(server: Cohort, model: str) -> None:
    """Proven models share runs, if larger runs are faster; the others report the node."""
    batching = await described(server, model)
    verdict = BROUGHT[model].verdict
    assert batching["rows"]["verdict"] == verdict
    if verdict == "refuted":
        assert not batching["on"]
        assert batching["rows"]["node"] in batching["reason"]
        return
    assert batching["reason"] in ("", "larger batches are not faster here")
    requests = [BROUGHT[model].request(number) for number in range(CALLERS)]
    async with asking(server, "predict") as ask:
        before = runs(server, model)
        await asyncio.gather(*[ask(model, request) for request in requests])
        assert (runs(server, model) - before < CALLERS) is batching["on"]


def runs(server: Cohort, model: str) -> float:
    """Return how many runs a model has had."""
    return Scrape(server.url).value("model_batch_rows_count", model=model)
