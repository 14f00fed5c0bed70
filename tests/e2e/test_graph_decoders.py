"""A model that decodes pictures in its graph: bytes that end its decoder end no other process."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from tests import onnx_models
from tests.e2e.processes import Cohort, cohort, free_port
from tests.rpc.client import connected
from tests.waiting import PATIENCE, wait_until

PIXELS = np.arange(6 * 8 * 3, dtype=np.uint8).reshape(6, 8, 3)


def file_of(kind: str, size: tuple[int, int] | None = None) -> bytes:
    image = Image.fromarray(PIXELS)
    file = io.BytesIO()
    (image.resize(size) if size else image).save(file, kind)
    return file.getvalue()


PNG = file_of("PNG")
ENDING = {"text": b"not a picture", "head": b"\xff\xd8\xff\xe0\0\x10JFIF\0", "gif": file_of("GIF")}
HANGING = file_of("JPEG", (640, 480))[:1500]

LIBRARY = {"session": {"custom_op_libraries": ["extensions"]}}


def serving(folder: Path, **config: object) -> None:
    onnx_models.save(onnx_models.decoded_image(), folder / "models/image/1/model.onnx")
    (folder / "models/image/config.yaml").write_text(json.dumps({**LIBRARY, **config}))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """One with such a model, and another one."""
    folder = tmp_path_factory.mktemp("decoders")
    serving(folder, timeout_ms=3000)
    onnx_models.save(onnx_models.mlp(), folder / "models/mlp/1/model.onnx")
    with cohort(folder / "models", folder, grpc_port=free_port()) as started:
        yield started


def send(server: Cohort, file: bytes) -> httpx.Response:
    return httpx.post(
        f"{server.url}/models/image/predict",
        content=file,
        headers={"content-type": "image/png"},
        timeout=60,
    )


def answers(server: Cohort) -> bool:
    """Return True if the model answers with a picture's pixels, in blue, green, red."""
    answer = send(server, PNG)
    return answer.status_code == 200 and answer.json()["prediction"] == PIXELS[..., ::-1].tolist()


@pytest.mark.parametrize("bytes_", ENDING.values(), ids=[*ENDING])
def test_bytes_that_end_the_decoder_get_a_503(server: Cohort, bytes_: bytes) -> None:
    """The restarted process answers the next caller; other models are not affected."""
    assert answers(server)
    answer = send(server, bytes_)
    assert answer.status_code == 503, answer.text
    assert "the decoder of this model crashed" in answer.text
    assert (
        httpx.post(f"{server.url}/models/mlp/predict", json={"input": [[0.5, 1, 2, 3]]}).status_code
        == 200
    )
    assert wait_until(lambda: answers(server))


async def test_it_is_so_over_grpc(server: Cohort) -> None:
    """A crash is UNAVAILABLE there, and a picture its pixels."""
    assert wait_until(lambda: answers(server))
    async with connected(server.grpc) as client:
        found = await client.infer("image", {"image": np.frombuffer(PNG, np.uint8)})
        assert found["pixels"].tolist() == PIXELS[..., ::-1].tolist()
        with pytest.raises(Exception, match="the decoder of this model crashed"):
            await client.infer("image", {"image": np.frombuffer(ENDING["text"], np.uint8)})


def test_bytes_that_hang_it_are_given_up(server: Cohort) -> None:
    """After `timeout_ms` the decoder and its children are killed; then it answers again."""
    assert wait_until(lambda: answers(server))
    answer = send(server, HANGING)
    assert answer.status_code in {503, 504}, answer.text
    assert wait_until(lambda: answers(server))


def test_a_broken_picture_costs_nothing_but_its_answer(server: Cohort) -> None:
    """A PNG that cannot be decoded is an error with the operator's words."""
    assert wait_until(lambda: answers(server))
    answer = send(server, PNG[:60])
    assert answer.status_code in {400, 500}, answer.text
    assert answers(server)


def test_who_trusts_the_decoder_has_it_in_the_server(tmp_path: Path) -> None:
    """`trust_decoder: true` starts no process, and the log names what callers can do."""
    serving(tmp_path, trust_decoder=True)
    with cohort(tmp_path / "models", tmp_path) as trusting:
        assert answers(trusting)
        (line,) = [one for one in trusting.logged.splitlines() if "callers can end" in one]
        assert json.loads(line)["event"] == "callers can end this process"
        send_quietly(trusting, ENDING["text"])
        assert trusting.process.wait(PATIENCE)


def send_quietly(server: Cohort, file: bytes) -> None:
    """Send bytes to a server that they end."""
    with pytest.raises(httpx.TransportError):
        send(server, file)
