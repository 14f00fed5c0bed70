"""Sequences over every API, alone and with two processes, on a real server."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from cohort.auth.keys import digest_of
from tests import onnx_models
from tests.e2e.processes import COMMAND, Cohort, cohort, free_port
from tests.e2e.scrape import Scrape
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
        for id_ in (7, "other", 0, [1] * 100_000):
            wrong = v2(client, 0, id_, start=id_ == 0)
            assert wrong.status_code == 400
            assert "sequence" in wrong.json()["error"]
        assert "got a list" in wrong.json()["error"]
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


def test_the_id_may_stand_in_a_header(server: Cohort) -> None:
    """Balancers need it there; every HTTP API reads it, and it must equal the parameter."""
    with httpx.Client(base_url=server.url, timeout=60) as client:

        def ask(path: str, body: object, header: str) -> httpx.Response:
            return client.post(path, json=body, headers={"x-sequence-id": header})

        tensor = {"name": "x", "datatype": "FP32", "shape": [1, WIDTH], "data": [8.0] * WIDTH}
        body = {"inputs": [tensor], "parameters": {"sequence_start": True}}
        assert value_of(ask("/v2/models/m/infer", body, "s-1")) == 8
        assert value_of(v2(client, 0, "s-1")) == 4
        rows = {"inputs": {"x": [[0.0] * WIDTH]}}
        assert ask("/models/m/predict", rows, "s-1").json()["outputs"] == {"y": [[2.0] * WIDTH]}
        assert ask("/v1/models/m:predict", rows, "s-1").json()["outputs"] == [[1.0] * WIDTH]
        table = {"inputs": rows["inputs"]["x"], "params": {}}
        answer = ask("/invocations", table, "s-1")
        assert "0.5" in answer.text, answer.text
        for header in ("s-2", "S-1", "s-1, s-2"):
            wrong = ask(
                "/v2/models/m/infer", {**body, "parameters": {"sequence_id": "s-1"}}, header
            )
            assert wrong.status_code == 400
            assert f"the header x-sequence-id is '{header}'" in wrong.text
        body["parameters"] = {"sequence_id": 31, "sequence_start": True}
        assert value_of(ask("/v2/models/m/infer", body, "31")) == 8
        assert ask("/models/m/predict", rows, "x" * 300).status_code == 400


async def test_the_id_may_stand_in_the_metadata(server: Cohort) -> None:
    """A call over gRPC has it, and so has a stream."""

    def request(**parameters: Any) -> Any:
        made = raw_request("m", {"x": np.full((1, WIDTH), 8, np.float32)})
        for name, value in parameters.items():
            kind = "bool_param" if isinstance(value, bool) else "string_param"
            setattr(made.parameters[f"sequence_{name}"], kind, value)
        return made

    async def sent() -> AsyncIterator[bytes]:
        yield request().SerializeToString()
        yield request(id="other").SerializeToString()

    metadata = (("x-sequence-id", "meta"),)
    async with connected(server.grpc) as client:
        first = await client.call("ModelInfer", request(start=True), metadata=metadata)
        second = await client.call("ModelInfer", request(id="meta"))
        assert [arrays_of(one)["y"][0, 0] for one in (first, second)] == [8, 12]
        answers = [one async for one in client.stream(sent(), metadata=metadata)]
        assert arrays_of(answers[0].infer_response)["y"][0, 0] == 14
        assert "the header x-sequence-id is 'meta'" in answers[1].error_message


def test_sequences_are_counted(server: Cohort) -> None:
    """Metrics have the open sequences and their memory."""
    metrics = Scrape(server.url)
    labels = {"model": "m", "version": "1"}
    before = metrics.value("model_sequences", **labels)
    with httpx.Client(base_url=server.url, timeout=60) as client:
        assert value_of(v2(client, 8, "counted", start=True)) == 8
        after = Scrape(server.url)
        assert after.value("model_sequences", **labels) == before + 1
        assert after.value("model_sequence_bytes", **labels) > 0
        assert after.value("model_sequences_idle_total", **labels) == 0
        assert value_of(v2(client, 8, "counted", end=True)) == 12
    assert Scrape(server.url).value("model_sequences", **labels) == before


ALONE = "m: {variants: {old: {version: 1, weight: 1}}, baseline: old, "
BOTH = ALONE.replace("}}, ", "}, new: {version: 2, weight: 1}}, ")


@pytest.fixture
def two_versions(models: Path, tmp_path: Path) -> Path:
    shutil.copytree(models / "m", tmp_path / "models/m")
    onnx_models.save(remembering(0.25), tmp_path / "models/m/2/model.onnx")
    return tmp_path


def test_no_sequence_goes_on_with_another_version(two_versions: Path) -> None:
    """If a rollout draws for each request, a step gets 409, logged as a caller's; a key helps."""
    rollouts = two_versions / "rollouts.yaml"
    rollouts.write_text(BOTH + "}\n")
    with (
        cohort(two_versions / "models", two_versions, rollouts=rollouts) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        found: set[float] = set()
        codes = set()
        for number in range(40):
            began = v2(client, 8, number + 1, start=True)
            answer = v2(client, 0, number + 1)
            codes.add(answer.status_code)
            if answer.status_code == 200:
                assert answer.json()["model_version"] == began.json()["model_version"]
                found.add(value_of(answer))
        assert codes == {200, 409}
        assert found == {4, 2}
        assert "Traceback" not in server.logged
        assert "without sticky" in server.get("/health").text
        rollouts.write_text(BOTH + "sticky: {header: x-sequence-id}}\n")
        wait_until(lambda: server.get("/models/m").json()["rollout"]["sticky"])
        assert server.get("/health").json()["problems"] == []
        for number in range(20):
            headers = {"x-sequence-id": f"kept {number}"}
            body: Any = {"inputs": {"x": [[8.0] * WIDTH]}, "parameters": {"sequence_start": True}}
            for flags in ({"sequence_start": True}, {}, {"sequence_end": True}):
                body["parameters"] = flags
                answer = client.post("/models/m/predict", json=body, headers=headers)
                assert answer.status_code == 200, answer.text


def test_shadows_do_not_judge_sequences(two_versions: Path) -> None:
    """Copies are counted as dropped, not as answers that differ."""
    rollouts = two_versions / "rollouts.yaml"
    rollouts.write_text(ALONE + "shadow: {version: 2}}\n")
    judged = "rollout of m: the model has state, which guard and shadow cannot judge"
    command = [*COMMAND, "check", "--no-open", "--models", str(two_versions / "models")]
    checked = subprocess.run(
        [*command, "--rollouts", str(rollouts)], capture_output=True, text=True, check=False
    )
    assert judged in checked.stdout + checked.stderr
    with (
        cohort(two_versions / "models", two_versions, rollouts=rollouts) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        assert value_of(v2(client, 8, 1, start=True)) == 8
        assert value_of(v2(client, 0, 1, end=True)) == 4
        wait_until(lambda: Scrape(server.url).value("shadow_dropped_total", model="m") == 2)
        assert Scrape(server.url).value("shadow_disagreement_total", model="m") == 0
        assert server.get("/health").json()["problems"] == [
            f"{judged}: nothing is rolled back automatically"
        ]


def test_several_processes_refuse_a_model_with_state(models: Path, tmp_path: Path) -> None:
    """A sequence is in one process, and requests reach any: the reason names the setting."""
    onnx_models.save(onnx_models.mlp(), tmp_path / "models/other/1/model.onnx")
    shutil.copytree(models / "m", tmp_path / "models/m")
    with cohort(tmp_path / "models", tmp_path, ready=False, workers=2) as server:
        server.wait_for("/v2/models/other/ready")
        with httpx.Client(base_url=server.url, timeout=60) as client:
            wait_until(lambda: "COHORT_WORKERS" in v2(client, 8, 1, start=True).text)
            refused = v2(client, 8, 1, start=True)
    assert refused.status_code == 503
    assert (
        "m/config.yaml: state: a sequence lives in one process, and this server has 2"
        in (refused.json()["error"])
    )
