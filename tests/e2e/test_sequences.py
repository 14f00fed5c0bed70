"""Sequences over every API, alone and with two processes, on a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from cohort.auth.keys import digest_of
from tests import onnx_models
from tests.e2e.processes import Cohort, cohort, free_port
from tests.rpc.client import arrays_of, connected, raw_request
from tests.sequences.test_sequences import STATE, WIDTH, remembering
from tests.waiting import wait_until

KEYS = ("first-key-000000000", "second-key-00000000")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sequences") / "models"
    onnx_models.save(remembering(), folder / "m/1/model.onnx")
    (folder / "m/config.yaml").write_text(STATE)
    return folder


@pytest.fixture(scope="module")
def server(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    with cohort(models, tmp_path_factory.mktemp("server"), grpc_port=free_port()) as started:
        yield started


def v2(client: httpx.Client, x: float, sequence: object, **flags: bool) -> httpx.Response:
    parameters = {"sequence_id": sequence, **{f"sequence_{name}": on for name, on in flags.items()}}
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, WIDTH], "data": [x] * WIDTH}
    return client.post("/v2/models/m/infer", json={"inputs": [tensor], "parameters": parameters})


def value_of(answer: httpx.Response) -> float:
    assert answer.status_code == 200, answer.text
    (output,) = answer.json()["outputs"]
    return float(output["data"][0])


def test_sequences_over_rest(server: Cohort) -> None:
    """V2 and the simple API share them; a number is the same id as its text."""
    with httpx.Client(base_url=server.url, timeout=60) as client:
        assert value_of(v2(client, 8, 7, start=True)) == 8
        assert value_of(v2(client, 0, "7")) == 4
        body = {"inputs": {"x": [[1.0] * WIDTH]}, "parameters": {"sequence_id": 7}}
        answer = client.post("/models/m/predict", json=body)
        assert answer.json()["outputs"] == {"y": [[3.0] * WIDTH]}
        assert value_of(v2(client, 0, 7, end=True)) == 1.5
        for wrong in (v2(client, 0, 7), v2(client, 0, "other"), v2(client, 0, 0, start=True)):
            assert wrong.status_code == 400
            assert "sequence" in wrong.json()["error"]
        shown = client.get("/v2/models/m").json()
        assert [one["name"] for one in shown["inputs"]] == ["x"]
        assert [one["name"] for one in shown["outputs"]] == ["y"]


async def test_sequences_over_grpc(server: Cohort) -> None:
    """Unary, and on a stream, whose requests run in the order in which they were sent."""

    def request(x: float, **parameters: Any) -> Any:
        made = raw_request("m", {"x": np.full((1, WIDTH), x, np.float32)})
        for name, value in parameters.items():
            if isinstance(value, bool):
                made.parameters[f"sequence_{name}"].bool_param = value
            else:
                made.parameters["sequence_id"].int64_param = value
        return made

    async def sent() -> AsyncIterator[bytes]:
        yield request(8, id=21, start=True).SerializeToString()
        for _ in range(10):
            yield request(0, id=21).SerializeToString()

    async with connected(server.grpc) as client:
        first = await client.call("ModelInfer", request(8, id=20, start=True))
        second = await client.call("ModelInfer", request(0, id=20, end=True))
        assert [arrays_of(one)["y"][0, 0] for one in (first, second)] == [8, 4]
        with pytest.raises(grpc.aio.AioRpcError, match="sequence '20' has not started"):
            await client.call("ModelInfer", request(0, id=20))
        found = []
        async for answer in client.stream(sent()):
            assert not answer.error_message
            found.append(float(arrays_of(answer.infer_response)["y"][0, 0]))
        assert found == [8 / 2**number for number in range(11)]


def test_callers_have_sequences_of_their_own(models: Path, tmp_path: Path) -> None:
    """The same id of another key is another sequence."""
    entries = [
        f"- {{name: k{n}, sha256: '{digest_of(key).hex()}'}}\n" for n, key in enumerate(KEYS)
    ]
    (tmp_path / "keys.yaml").write_text("".join(entries))
    with cohort(models, tmp_path, api_keys=tmp_path / "keys.yaml") as server:
        clients = [
            httpx.Client(
                base_url=server.url, timeout=60, headers={"authorization": f"Bearer {key}"}
            )
            for key in KEYS
        ]
        assert value_of(v2(clients[0], 8, 1, start=True)) == 8
        assert v2(clients[1], 0, 1).status_code == 400
        assert value_of(v2(clients[1], 2, 1, start=True)) == 2
        assert value_of(v2(clients[0], 0, 1)) == 4
        for client in clients:
            client.close()


def test_a_sequence_lives_in_one_of_several_processes(models: Path, tmp_path: Path) -> None:
    """Its connection reaches it; another process refuses it and says so."""
    refused: list[httpx.Response] = []
    with cohort(models, tmp_path, workers=2) as server, ExitStack() as stack:

        def connect() -> httpx.Client:
            return stack.enter_context(httpx.Client(base_url=server.url, timeout=60))

        def reaches_another() -> bool:
            answer = v2(connect(), 0, 1)
            if answer.status_code != 200:
                refused.append(answer)
            return bool(refused)

        first = connect()
        assert value_of(v2(first, 8, 1, start=True)) == 8
        wait_until(reaches_another)
        assert 0 < value_of(v2(first, 0, 1)) < 8
    assert refused[0].status_code == 400
    assert "another of the server's 2 processes" in refused[0].json()["error"]
