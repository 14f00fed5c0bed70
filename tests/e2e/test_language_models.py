"""Language models of the real process, over OpenAI's routes and those of other APIs."""

from __future__ import annotations

import gzip
import json
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from models.decoder import write_decoder
from models.decoder_graph import DecoderShape
from tests.e2e.processes import Cohort, cohort
from tests.http.wire import connect, read_all, request
from tests.waiting import PATIENCE

CHAT = "/v1/chat/completions"
ASKED: dict[str, Any] = {
    "model": "letters",
    "messages": [{"role": "user", "content": "hello"}],
    "temperature": 0,
    "ignore_eos": True,
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Decoders of random weights; the context of one is long."""
    folder = tmp_path_factory.mktemp("letters") / "models"
    write_decoder(folder / "letters/1", replace(DecoderShape(), context=1 << 16))
    write_decoder(folder / "short/1")
    return folder


@pytest.fixture(scope="module")
def server(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    with cohort(models, tmp_path_factory.mktemp("server")) as started:
        yield started


@pytest.fixture
def client(server: Cohort) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
        yield client


def test_a_stream_has_the_text_of_the_whole_answer(client: httpx.Client) -> None:
    """Both count the same tokens, and answer with the caller's request id."""
    body = {**ASKED, "max_tokens": 20}
    whole = client.post(CHAT, json=body, headers={"x-request-id": "a1"})
    assert whole.status_code == 200, whole.text
    assert whole.headers["x-request-id"] == "a1"
    assert whole.headers["x-model-version"] == "1"
    streaming = {**body, "stream": True, "stream_options": {"include_usage": True}}
    stream = client.post(CHAT, json=streaming)
    events = [line.removeprefix("data: ") for line in stream.text.split("\n\n")[:-2]]
    *chunks, last = map(json.loads, events)
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    answer = whole.json()
    assert text == answer["choices"][0]["message"]["content"]
    assert last["usage"]["completion_tokens"] == answer["usage"]["completion_tokens"] == 20
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_an_answer_has_the_form_of_its_schema(client: httpx.Client) -> None:
    """Random weights cannot leave it."""
    schema = {
        "type": "object",
        "properties": {"happy": {"type": "boolean"}},
        "required": ["happy"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "mood", "schema": schema}}
    body = {**ASKED, "ignore_eos": False, "max_tokens": 200, "response_format": form}
    answer = client.post(CHAT, json=body).json()
    assert set(json.loads(answer["choices"][0]["message"]["content"])) == {"happy"}


def test_a_caller_who_has_no_time_gets_an_error(client: httpx.Client) -> None:
    """Before the first event a stream is refused with a status."""
    long = [{"role": "user", "content": "hello " * 2_000}]  # its first token takes longer
    for stream in (False, True):
        body = {**ASKED, "messages": long, "max_tokens": 9, "timeout_ms": 1, "stream": stream}
        response = client.post(CHAT, json=body)
        assert response.status_code == 504, response.text
        assert response.json()["error"]["code"] == "timeout"


def test_the_model_answers_on_every_api(client: httpx.Client) -> None:
    """TensorFlow Serving's paths and /predict take texts."""
    predicted = client.post("/v1/models/short:predict", json={"instances": ["hello"]})
    assert len(predicted.json()["predictions"]) == 1
    assert client.get("/v1/models/short/metadata").json()["model_spec"]["version"] == "1"
    status = client.get("/v1/models/short").json()
    assert (status["object"], status["ready"]) == ("model", True)
    listed = client.get("/v1/models").json()["data"]
    assert [one["id"] for one in listed] == ["letters", "short"]


def test_a_stream_that_the_drain_cuts_ends_with_an_error(models: Path, tmp_path: Path) -> None:
    """The process exits with 0."""
    body = {**ASKED, "max_tokens": 60_000, "stream": True}
    last = ""
    with cohort(models, tmp_path, drain_seconds=1) as server:
        with httpx.stream("POST", server.url + CHAT, json=body, timeout=PATIENCE) as response:
            assert response.status_code == 200
            for number, line in enumerate(response.iter_lines()):
                if number == 10:
                    server.process.send_signal(signal.SIGTERM)
                last = line or last
        assert server.process.wait(PATIENCE) == 0, server.logged
    error = json.loads(last.removeprefix("data: "))["error"]
    assert error["code"] == "service_unavailable"
    assert "shutting down" in error["message"]


STREAMS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {**ASKED, "max_tokens": 5, "stream": True}),
    "text": ("/v1/completions", {"model": "letters", "prompt": "hello", "stream": True}),
    "generate": ("/v2/models/letters/generate_stream", {"text_input": "a", "max_tokens": 5}),
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_to_http_1_0_ends_with_its_connection(server: Cohort, name: str) -> None:
    """HTTP/1.0 has no chunks, and many proxies use it."""
    path, body = STREAMS[name]
    with connect(server.url) as caller:
        caller.sendall(request(path, body, version="1.0"))
        head, _, events = read_all(caller).decode().partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 200")
    assert "transfer-encoding" not in head
    assert "connection: close" in head
    parts = events.split("\n\n")
    assert parts.pop() == ""
    assert len(parts) > 1
    assert all(part.startswith("data: ") for part in parts)


def test_compressed_metrics_to_http_1_0_end_with_their_connection(server: Cohort) -> None:
    """Their length is not known before they are compressed."""
    with connect(server.url) as caller:
        asked = request("/metrics", b"", "accept-encoding: gzip", method="GET", version="1.0")
        caller.sendall(asked)
        head, _, body = read_all(caller).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert b"process_" in gzip.decompress(body)
