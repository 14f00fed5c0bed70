"""More models than may be loaded at once, in a real process."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from shutil import copytree
from typing import Any

import httpx
import numpy as np
import pytest
from grpc import StatusCode, aio

from cohort.registry import RESTING
from cohort.session import open_session
from tests import onnx_models
from tests.e2e.processes import MODELS, Cohort, cohort, free_port
from tests.e2e.scrape import Scrape
from tests.rpc.client import connected
from tests.waiting import until

Ask = Callable[[str], Awaitable[Any]]

NAMES = [f"m{number}" for number in range(5)]
ROW = np.array([[1.0, 2.0, 3.0, 4.0]], np.float32)
ASK = {"inputs": {"x": ROW.tolist()}}
MOST = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five models, which answer differently."""
    folder = tmp_path_factory.mktemp("on-demand")
    for seed, name in enumerate(NAMES):
        onnx_models.save(onnx_models.mlp(seed=seed), folder / f"models/{name}/1/model.onnx")
    return folder


@pytest.fixture(scope="module")
def right(folder: Path) -> dict[str, Any]:
    """Each model's right output for ROW."""
    return {
        name: open_session(folder / f"models/{name}/1/model.onnx").run({"x": ROW})[0]
        for name in NAMES
    }


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Cohort]:
    """A server that holds two of them."""
    options: dict[str, Any] = {
        "max_loaded_models": MOST,
        "grpc_port": free_port(),
        "admin_token": "secret",
    }
    with cohort(folder / "models", folder, **options) as server:
        yield server


def states(server: Cohort) -> dict[str, str]:
    """The state of each model's version."""
    models = server.get("/models").json()["models"]
    return {model["name"]: model["versions"][0]["state"] for model in models}


def counted(server: Cohort) -> Counter[str]:
    """The answers of all models so far, by their codes."""
    counts: Counter[str] = Counter()
    for sample in Scrape(server.url).samples:
        if sample.name == "model_inference_total":
            counts[sample.labels["code"]] += int(sample.value)
    return counts


def read(answer: httpx.Response) -> Any:
    """Return the output of an answer, or None if the caller has to retry."""
    if answer.status_code == 503:
        assert int(answer.headers["retry-after"]) >= 1
        return None
    assert answer.status_code == 200, answer.text
    outputs = answer.json()["outputs"]
    found = outputs["y"] if isinstance(outputs, dict) else outputs[0]["data"]
    return np.array(found, np.float32).reshape(1, -1)


async def test_every_model_answers_whichever_way_it_is_asked(
    server: Cohort, right: dict[str, Any]
) -> None:
    """The request that asks for a model which rests waits for it, by HTTP and by gRPC."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": ROW.tolist()}
    zipped = gzip.compress(json.dumps({"inputs": [tensor]}).encode())
    encoding = {"content-encoding": "gzip"}
    async with (
        httpx.AsyncClient(base_url=server.url, timeout=60) as client,
        connected(server.grpc) as rpc,
    ):

        async def fast(name: str) -> Any:
            return read(await client.post(f"/models/{name}/predict", json=ASK))

        async def ordinary(name: str) -> Any:
            path = f"/v2/models/{name}/infer"
            return read(await client.post(path, content=zipped, headers=encoding))

        async def over_grpc(name: str) -> Any:
            try:
                return (await rpc.infer(name, {"x": ROW}))["y"]
            except aio.AioRpcError as error:
                if error.code() is StatusCode.UNAVAILABLE:
                    return None
                raise

        for ask in (fast, ordinary, over_grpc):
            for name in NAMES:
                answers: list[Any] = []

                async def answered(
                    ask: Ask = ask, name: str = name, answers: list[Any] = answers
                ) -> bool:
                    answers += [] if (answer := await ask(name)) is None else [answer]
                    return bool(answers)

                await until(answered)
                np.testing.assert_allclose(answers[0], right[name], atol=1e-5)
                assert Counter(states(server).values())["READY"] <= MOST
    assert server.get("/health").json()["status"] == "healthy"
    assert server.get("/health/ready").status_code == 200


async def test_a_crowd_that_wants_more_models_than_there_is_room_for(
    server: Cohort, right: dict[str, Any]
) -> None:
    """Each is answered rightly or gets a time to retry; no caller waits indefinitely."""
    counts: Counter[int] = Counter()

    async def caller(client: httpx.AsyncClient, name: str) -> None:
        for _ in range(15):
            answer = await client.post(f"/models/{name}/predict", json=ASK)
            counts[answer.status_code] += 1
            if (found := read(answer)) is not None:
                np.testing.assert_allclose(found, right[name], atol=1e-5)

    before = counted(server)
    async with (
        httpx.AsyncClient(base_url=server.url, timeout=120) as client,
        asyncio.TaskGroup() as callers,
    ):
        for name in NAMES * 2:
            callers.create_task(caller(client, name))
    assert set(counts) <= {200, 503}
    assert counts[200] > 0
    assert counted(server) - before == Counter({"OK": counts[200], "NotReady": counts[503]})


def test_what_rests_says_so_and_can_be_loaded_by_hand(server: Cohort) -> None:
    """A model that rests is known, with the reason; an operator's `load` needs no request."""
    resting = next(name for name, state in states(server).items() if state != "READY")
    described = server.get(f"/models/{resting}").json()["versions"][0]
    assert (described["state"], described["reason"]) == ("UNAVAILABLE", RESTING)
    assert not Scrape(server.url).by("model_state", "state", model=resting)
    asked = httpx.get(f"{server.url}/v2/models/{resting}/ready")
    assert asked.status_code == 503
    assert states(server)[resting] == "UNAVAILABLE"  # reading it loads nothing
    loaded = httpx.post(
        f"{server.url}/admin/models/{resting}/load",
        headers={"authorization": "Bearer secret"},
        timeout=60,
    )
    assert loaded.json()["default_version"] == "1"
    unloaded = httpx.post(
        f"{server.url}/admin/models/{resting}/unload",
        headers={"authorization": "Bearer secret"},
    )
    assert unloaded.is_success
    refused = httpx.post(f"{server.url}/models/{resting}/predict", json=ASK)
    assert refused.status_code == 503  # a model that an operator unloaded stays so
    assert "is unloaded" in refused.text


@pytest.fixture(scope="module")
def one_place(folder: Path) -> Iterator[Cohort]:
    """A server that holds one of: `a` with versions 1 and 2, `b`, and `broken`."""
    models = folder / "one-place"
    for seed, name in enumerate(("a/1", "a/2", "b/1")):
        onnx_models.save(onnx_models.mlp(seed=seed), models / name / "model.onnx")
    (models / "a/config.yaml").write_text("versions: all\n")
    (models / "broken/1").mkdir(parents=True)
    (models / "broken/1/model.onnx").write_bytes(b"\x07 not a model")
    with cohort(models, folder, max_loaded_models=1, admin_token="secret") as server:
        yield server


async def ask_until_answered(client: httpx.AsyncClient, name: str) -> httpx.Response:
    """Ask a model until it answers, as its refusals advise."""
    answers: list[httpx.Response] = []

    async def answered() -> bool:
        answers[:] = [await client.post(f"/models/{name}/predict", json=ASK)]
        return read(answers[0]) is not None

    await until(answered)
    return answers[0]


async def test_callers_who_wait_get_the_highest_version_and_their_deadline(
    one_place: Cohort,
) -> None:
    """They do not get the first version that loads, and no answer after their deadline."""
    async with httpx.AsyncClient(base_url=one_place.url, timeout=60) as client:
        hurried = {**ASK, "timeout_ms": 1}

        async def late() -> bool:
            await ask_until_answered(client, "b")  # which takes the place of a
            answer = await client.post("/models/a/predict", json=hurried)
            assert answer.status_code in {503, 504}, answer.text
            return answer.status_code == 504

        await until(late)
        several = await asyncio.gather(*[ask_until_answered(client, "a") for _ in range(8)])
    assert {answer.json()["version"] for answer in several} == {"2"}


async def test_a_broken_model_holds_no_place(one_place: Cohort) -> None:
    """Repeated requests for it get its reason, and the others keep their places."""
    async with httpx.AsyncClient(base_url=one_place.url, timeout=60) as client:

        async def failed() -> bool:
            await client.post("/models/broken/predict", json=ASK)
            described = (await client.get("/models/broken")).json()["versions"][0]
            return bool(described["reason"] != RESTING)

        await until(failed)
        await ask_until_answered(client, "b")
        for _ in range(5):
            answer = await client.post("/models/broken/predict", json=ASK)
            assert answer.status_code == 503
            assert "retry-after" not in answer.headers
        assert (await client.get("/models/b")).json()["default_version"] == "1"
        assert "broken/1: failed: " in (await client.get("/health")).text


async def test_a_model_that_runs_all_the_time_keeps_no_other_out_for_ever(
    one_place: Cohort,
) -> None:
    """A caller that asks for another one for a while has it loaded, and then the first again."""
    stop = asyncio.Event()

    async def caller(client: httpx.AsyncClient) -> None:
        while not stop.is_set():
            read(await client.post("/models/b/predict", json=ASK))

    async with (
        httpx.AsyncClient(base_url=one_place.url, timeout=60) as client,
        asyncio.TaskGroup() as callers,
    ):
        await ask_until_answered(client, "b")
        callers.create_task(caller(client))
        await ask_until_answered(client, "a")
        stop.set()


async def test_what_an_operator_loads_beyond_the_limit_goes_once_it_is_idle(
    one_place: Cohort,
) -> None:
    """Both answer the operator; a moment later their number is within the limit."""
    admin = {"authorization": "Bearer secret"}
    async with httpx.AsyncClient(base_url=one_place.url, timeout=60, headers=admin) as client:
        for name in ("a", "b"):
            answer = await client.post(f"/admin/models/{name}/load")
            assert answer.json()["default_version"], answer.text

        async def one_is_left() -> bool:
            models = (await client.get("/models")).json()["models"]
            return [one["default_version"] for one in models].count(None) == 2

        await until(one_is_left)


def test_clients_find_language_models_that_are_not_loaded(tmp_path: Path) -> None:
    """OpenAI's list has them, since a request loads them."""
    copytree(MODELS / "smalltalk", tmp_path / "models/smalltalk")
    onnx_models.save(onnx_models.mlp(seed=0), tmp_path / "models/mlp/1/model.onnx")
    with cohort(tmp_path / "models", tmp_path, max_loaded_models=1) as server:
        assert states(server)["smalltalk"] == "UNAVAILABLE"
        listed = server.get("/v1/models").json()["data"]
        assert [one["id"] for one in listed] == ["smalltalk"]
        assert server.get("/v1/models/smalltalk").json()["object"] == "model"
