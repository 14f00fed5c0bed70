"""/metrics of a started server, and those who do not read what they asked for."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests import onnx_models
from tests.e2e.processes import Cohort, cohort
from tests.e2e.scrape import Scrape

MODELS = 60
ASK = b"GET /metrics HTTP/1.1\r\nhost: test\r\n\r\n"
ROW = {"input": [[0.0] * 4]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """Copies of a model, each of which was asked once: metrics of several blocks."""
    folder = tmp_path_factory.mktemp("scrapes")
    model = onnx_models.mlp()
    for number in range(MODELS):
        onnx_models.save(model, folder / f"models/m{number}/1/model.onnx")
    with cohort(folder / "models", folder) as server:
        for number in range(MODELS):
            httpx.post(f"{server.url}/models/m{number}/predict", json=ROW).raise_for_status()
        yield server


def test_head_is_answered_with_the_length_alone(server: Cohort) -> None:
    """The headers are those of GET, and the connection continues."""
    plain = {"accept-encoding": "identity"}
    with httpx.Client(base_url=server.url, headers=plain) as client:
        head, got = client.head("/metrics"), client.get("/metrics")
    assert head.content == b""
    assert head.headers["content-type"] == got.headers["content-type"]
    assert int(head.headers["content-length"]) == pytest.approx(len(got.content), abs=100)
    assert int(got.headers["content-length"]) == len(got.content) > 300_000


def counts_of(text: str) -> str:
    """Return the lines that are compared: reading all of them takes most of the time."""
    names = ("model_inference_total", "model_inference_duration_seconds_")
    return "".join(line for line in text.splitlines(keepends=True) if line.startswith(names))


def test_each_version_agrees_with_itself_under_load(server: Cohort) -> None:
    """In each of many simultaneous scrapes the counts of all its families and buckets agree."""
    with httpx.Client(base_url=server.url) as client, ThreadPoolExecutor(8) as threads:
        scrapes = [threads.submit(httpx.get, server.url + "/metrics") for _ in range(24)]
        while not all(one.done() for one in scrapes):
            for number in range(MODELS):
                client.post(f"/models/m{number}/predict", json=ROW).raise_for_status()
    for scrape in scrapes:
        values = {
            (sample.name, sample.labels.get("model"), sample.labels.get("le")): sample.value
            for family in text_string_to_metric_families(counts_of(scrape.result().text))
            for sample in family.samples
        }
        for number in range(MODELS):
            of = f"m{number}"
            counted = {
                values["model_inference_total", of, None],
                values["model_inference_duration_seconds_count", of, None],
                values["model_inference_duration_seconds_bucket", of, "+Inf"],
            }
            assert len(counted) == 1


def test_scrapers_who_do_not_read_hold_nobody_up(server: Cohort) -> None:
    """Clients that hang up at once do not delay others: requests and scrapes are still answered."""
    host, port = server.url.removeprefix("http://").split(":")
    waiting = [socket.create_connection((host, int(port))) for _ in range(100)]
    for one in waiting:
        one.sendall(ASK)
    for _ in range(100):
        with socket.create_connection((host, int(port))) as one:
            one.sendall(ASK)
    before = Scrape(server.url).value("model_inference_total", model="m0")
    httpx.post(f"{server.url}/models/m0/predict", json=ROW).raise_for_status()
    assert Scrape(server.url).value("model_inference_total", model="m0") == before + 1
    for one in waiting:
        one.close()
    assert "Traceback" not in server.logged
