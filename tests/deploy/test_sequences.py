"""The shipped balancers in front of models with state: a sequence stays with its replica."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from grpc import aio

from tests import onnx_models
from tests.deploy.balancers import Fleet, Start, fleet, haproxy, nginx
from tests.deploy.test_nginx import patient, stand_ins
from tests.e2e.scrape import Scrape
from tests.rpc.client import Client, arrays_of, raw_request
from tests.sequences.test_sequences import STATE, WIDTH, remembering
from tests.waiting import PATIENCE, wait_until

SEQUENCES = [f"sequence-{number}" for number in range(24)]


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[Fleet]:
    onnx_models.save(remembering(), tmp_path / "models/m/1/model.onnx")
    (tmp_path / "models/m/config.yaml").write_text(STATE)
    with fleet(tmp_path / "models", tmp_path) as started:
        yield started


def step(url: str, x: float, sequence: str, **flags: bool) -> httpx.Response:
    """Send a request over a new connection; only the header has the id."""
    body = {"inputs": {"x": [[x] * WIDTH]}, "parameters": flags}
    headers = {"x-sequence-id": sequence}
    return httpx.post(f"{url}/models/m/predict", json=body, headers=headers, timeout=PATIENCE)


def state_of(answer: httpx.Response) -> float:
    assert answer.status_code == 200, answer.text
    return float(answer.json()["outputs"]["y"][0][0])


def opened(replicas: Fleet) -> list[int]:
    """Return how many sequences each replica has."""
    urls = [one.url for _, one in sorted(replicas.replicas.items())]
    return [int(Scrape(url).value("model_sequences")) for url in urls]


@pytest.mark.parametrize("start", [nginx, haproxy])
def test_sequences_stay_with_their_replica(start: Start, replicas: Fleet, tmp_path: Path) -> None:
    """They stay over new connections and gRPC; sequences of a dead replica get an error."""
    with start(replicas.ports, tmp_path, grpc=replicas.grpc_ports) as balancer:
        for sequence in SEQUENCES:
            assert state_of(step(balancer.url, 8, sequence, sequence_start=True)) == 8
        assert sum(opened(replicas)) == len(SEQUENCES)
        assert all(opened(replicas))
        for sequence in SEQUENCES:
            assert state_of(step(balancer.url, 0, sequence)) == 4
        asyncio.run(_over_grpc(balancer.grpc_port))
        kept = sum(opened(replicas)[1:])
        replicas.end(0, kill=signal.SIGKILL)
        wait_until(lambda: _all_answer(balancer.url))
        answers = {sequence: step(balancer.url, 0, sequence) for sequence in SEQUENCES}
        going_on = [answer for answer in answers.values() if answer.status_code == 200]
        assert len(going_on) == kept
        lost = {name: answer for name, answer in answers.items() if answer.status_code == 400}
        assert all("has not started" in answer.text for answer in lost.values())
        assert len(lost) + len(going_on) == len(SEQUENCES)
        for sequence in lost:
            assert state_of(step(balancer.url, 6, sequence, sequence_start=True)) == 6
            assert state_of(step(balancer.url, 0, sequence, sequence_end=True)) == 3


def _all_answer(url: str) -> bool:
    """Return True if no dead replica gets requests."""
    codes = Counter(step(url, 0, f"unknown-{name}").status_code for name in SEQUENCES)
    return codes.keys() == {400}


async def _over_grpc(port: int) -> None:
    """Run a sequence over a new connection for each request, one of them on a stream."""

    async def sent(request: Any) -> AsyncIterator[bytes]:
        yield request.SerializeToString()

    for number, expected in enumerate((8, 4, 2)):
        async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            x = np.full((1, WIDTH), 0 if number else 8, np.float32)
            request: Any = raw_request("m", {"x": x})
            request.parameters["sequence_start"].bool_param = not number
            request.parameters["sequence_end"].bool_param = number == 2
            metadata = (("x-sequence-id", "over-grpc"),)
            client = Client(channel)
            if number == 1:
                (told,) = [one async for one in client.stream(sent(request), metadata=metadata)]
                assert not told.error_message
                answer = told.infer_response
            else:
                answer = await client.call("ModelInfer", request, metadata=metadata)
            assert arrays_of(answer)["y"][0, 0] == expected


async def test_a_request_of_a_sequence_is_sent_once(tmp_path: Path) -> None:
    """It may have run without an answer: nginx tries no other replica and returns SequenceEnded."""
    async with stand_ins() as replicas:
        with nginx(replicas.ports, tmp_path, patient) as balancer:
            async with httpx.AsyncClient(base_url=balancer.url, timeout=PATIENCE) as client:
                headers = {"x-sequence-id": "0"}
                lost = await client.post("/models/deadly/predict", content=b"{}", headers=headers)
                answered = await client.post("/models/m/predict", content=b"{}", headers=headers)
    assert (lost.status_code, lost.json()["code"]) == (409, "SequenceEnded")
    assert lost.headers["x-request-id"]
    assert answered.status_code == 200
    assert replicas.asked == ["/models/deadly/predict", "/models/m/predict"]


def test_a_sequence_finds_no_replica(tmp_path: Path) -> None:
    """If no replica accepts connections, nginx answers NotReady."""
    with nginx([1, 2, 3], tmp_path) as balancer:
        answer = step(balancer.url, 0, "any")
    assert (answer.status_code, answer.json()["code"]) == (503, "NotReady")
    assert answer.headers["retry-after"] == "1"
