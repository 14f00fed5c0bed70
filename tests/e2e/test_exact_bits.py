"""`batching: {exact: true}`: callers get the very bits of a lone request, on every API."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from cohort.tensors import Array
from tests import onnx_models
from tests.e2e.asking import APIS, CALLERS, ROUNDS, asking, described
from tests.e2e.processes import Cohort, cohort, free_port
from tests.e2e.rounding_models import ROUNDINGS, request
from tests.e2e.scrape import Scrape

EXACT = "batching: {max_queue_delay_ms: 20, exact: true}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """Each model twice, with and without the promise."""
    folder = tmp_path_factory.mktemp("rounding")
    for name, rounding in ROUNDINGS.items():
        for model, config in ((name, EXACT), (f"{name}_plain", "")):
            onnx_models.save(rounding.model(), folder / "models" / model / "1/model.onnx")
            (folder / "models" / model / "config.yaml").write_text(config)
    with cohort(folder / "models", folder, grpc_port=free_port()) as started:
        yield started


def bits(answer: Mapping[str, Any]) -> bytes:
    """Return the output's bits as FP32: JSON has enough digits for each number."""
    found: Array = np.asarray(next(iter(answer.values())), np.float32)
    return found.tobytes()


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("model", ROUNDINGS)
async def test_no_bit_differs_from_the_answer_alone(server: Cohort, model: str, api: str) -> None:
    """This holds for requests of one row and of several, with any others at the same time."""
    await described(server, model)
    requests = [request(number) for number in range(CALLERS)]
    async with asking(server, api) as ask:
        alone = [bits(await ask(model, one)) for one in requests]
        for _ in range(ROUNDS):
            together = await asyncio.gather(*[ask(model, one) for one in requests])
            assert [bits(one) for one in together] == alone


@pytest.mark.parametrize("model", ROUNDINGS)
async def test_models_that_can_keep_the_promise_share_runs(server: Cohort, model: str) -> None:
    """A lone row runs as two if that is needed; the other models report the node."""
    batching = await described(server, model)
    rounding = ROUNDINGS[model]
    assert (batching["exact"], batching["exact_reason"]) == (True, "")
    if not rounding.least_rows:
        assert not batching["on"]
        assert batching["reason"].startswith(
            f"callers would get other bits than alone (batching.exact): {rounding.node} rounds"
        )
        return
    assert batching["reason"] in ("", "larger batches are not faster here")
    requests = [request(number) for number in range(CALLERS)]
    async with asking(server, "predict") as ask:
        before = runs(server, model)
        await asyncio.gather(*[ask(model, one) for one in requests])
        assert (runs(server, model) - before < CALLERS) is batching["on"]
    found = server.get(f"/models/{model}").json()["versions"][0]["profile"]
    filled = rounding.least_rows if rounding.least_rows > 1 and batching["on"] else 0
    assert found["filled_rows"] == filled


def runs(server: Cohort, model: str) -> float:
    """Return how many runs a model has had."""
    return Scrape(server.url).value("model_batch_rows_count", model=model)


@pytest.mark.parametrize("model", ROUNDINGS)
async def test_without_the_promise_it_is_said_whether_it_holds(server: Cohort, model: str) -> None:
    """The reason has the node and the largest difference seen."""
    batching = await described(server, f"{model}_plain")
    rounding = ROUNDINGS[model]
    assert batching["reason"] in ("", "larger batches are not faster here")
    threads = "while there is no other" in batching["exact_reason"]
    if not rounding.node or not batching["on"]:
        assert batching["exact"] or threads
    else:
        assert not batching["exact"]
        assert threads or batching["exact_reason"].startswith(f"{rounding.node} rounds a row ")
