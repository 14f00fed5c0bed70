"""Sound over every API, and 500 files that are damaged, on a real server."""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from tests import onnx_models
from tests.e2e.processes import Cohort, cohort, free_port
from tests.processing.test_sound import KINDS, TONE, file_of
from tests.rpc.client import connected

SHORT: Any = TONE[:800]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """One that answers with the samples of "x", of a model that takes nothing else."""
    folder = tmp_path_factory.mktemp("sound")
    model = onnx_models.identity(shape=("N", "samples"))
    onnx_models.save(model, folder / "models/ear/1/model.onnx")
    (folder / "models/ear/config.yaml").write_text("inputs: {x: {audio: {sample_rate: 16000}}}\n")
    with cohort(folder / "models", folder, grpc_port=free_port()) as started:
        yield started


def post(server: Cohort, path: str, **sent: Any) -> Any:
    answer = httpx.post(server.url + path, **sent, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_sound_goes_in_by_every_api(server: Cohort) -> None:
    """It may be the body, a part of a form, base64 in JSON, or BYTES; V2 shows BYTES [N]."""
    file = file_of(SHORT, "FLAC")
    text = base64.b64encode(file).decode()
    v2 = {"name": "x", "datatype": "BYTES", "shape": [1], "data": [text]}
    b64 = {"b64": text}
    answers = [
        post(server, "/predict", content=file, headers={"content-type": "audio/flac"})[
            "prediction"
        ],
        post(
            server, "/predict", content=file, headers={"content-type": "application/octet-stream"}
        )["prediction"],
        post(server, "/models/ear/predict", files={"x": ("a.flac", file)})["outputs"]["y"],
        post(server, "/predict", json={"inputs": {"x": b64}})["outputs"]["y"],
        post(server, "/predict", json={"inputs": {"x": [b64]}})["outputs"]["y"],
        post(server, "/predict", json={"inputs": {"x": [text]}})["outputs"]["y"],
        post(server, "/v1/models/ear:predict", json={"instances": [b64]})["predictions"],
        post(server, "/invocations", json={"inputs": {"x": [b64]}})["predictions"],
        [post(server, "/v2/models/ear/infer", json={"inputs": [v2]})["outputs"][0]["data"]],
    ]
    async with connected(server.grpc) as client:
        found = await client.infer("ear", {"x": np.array([file], np.object_)})
        answers.append(found["y"])
    for answer in answers:
        array = np.asarray(answer, np.float32)
        np.testing.assert_allclose(array.reshape(1, -1), SHORT[None], atol=1e-4)
    shown = server.get("/v2/models/ear").json()["inputs"]
    assert shown == [{"name": "x", "datatype": "BYTES", "shape": [-1]}]


def test_damaged_files_are_refused_clearly(server: Cohort) -> None:
    """500 of them are 400 with the input and the row, and the server answers the next request."""
    generator = random.Random(0)
    files = [file_of(SHORT, kind, encoding) for kind, encoding in KINDS]
    with httpx.Client(base_url=server.url, timeout=60) as client:
        for number in range(500):
            file = bytearray(files[number % len(files)])
            if number % 2:
                del file[generator.randrange(1, len(file) - 2) :]
            else:
                file[: generator.randrange(4, 12)] = bytes(4)
            headers = {"content-type": "audio/x-any"}
            answer = client.post("/predict", content=bytes(file), headers=headers)
            assert answer.status_code == 400, (number, answer.text)
            assert "input 'x' row 0: " in answer.json()["error"]
    post(server, "/predict", content=file_of(SHORT), headers={"content-type": "audio/wav"})
