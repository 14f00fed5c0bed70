"""Callers who begin calls and leave: no work is done for them, and limits still hold."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import closing
from functools import partial

import httpx
import numpy as np
import pytest

from tests import onnx_models
from tests.attacks.http2 import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    RST_STREAM,
    Peer,
    call_headers,
    frame,
    message,
)
from tests.e2e.processes import Cohort, cohort, free_port
from tests.e2e.scrape import Scrape
from tests.rpc.client import raw_request
from tests.waiting import PATIENCE, wait_until

CALLS = 40
CANCEL = b"\0\0\0\x08"
KEYS = "- {{name: small, sha256: {small}, concurrency: 1}}\n- {{name: other, sha256: {other}}}\n"
SMALL, OTHER = "a small caller's key", "another caller's key"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cohort]:
    """A model that runs as long as it is asked to, and a caller of one request at a time."""
    folder = tmp_path_factory.mktemp("leaving")
    onnx_models.save(onnx_models.loop(), folder / "models/loop/1/model.onnx")
    (folder / "models/loop/config.yaml").write_text("batching: {max_batch_size: 1}\n")
    digests = {
        name: hashlib.sha256(key.encode()).hexdigest()
        for name, key in (("small", SMALL), ("other", OTHER))
    }
    (folder / "keys.yaml").write_text(KEYS.format(**digests))
    with cohort(
        folder / "models", folder, grpc_port=free_port(), api_keys=folder / "keys.yaml"
    ) as server:
        yield server


def ask(server: Cohort) -> int:
    """Have another caller ask for something short; the status."""
    body = {"inputs": [{"name": "n", "datatype": "INT64", "shape": [1, 1], "data": [1]}]}
    headers = {"x-api-key": OTHER}
    url = f"{server.url}/v2/models/loop/infer"
    return httpx.post(url, json=body, headers=headers, timeout=PATIENCE).status_code


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
def test_calls_that_are_reset_in_the_segment_that_brings_them_are_not_run(
    server: Cohort, method: str
) -> None:
    """They held all processors to the end of their runs, and neither limit nor quota saw them."""
    headers = call_headers(method, [("authorization", f"Bearer {SMALL}")])
    asked = raw_request("loop", {"n": np.array([[onnx_models.FOREVER]])}).SerializeToString()
    with closing(Peer(server.grpc)) as peer:
        streams = [peer.next_stream() for _ in range(CALLS)]
        peer.write(
            b"".join(
                frame(HEADERS, END_HEADERS, stream, headers)
                + frame(DATA, END_STREAM, stream, message(asked))
                + frame(RST_STREAM, 0, stream, CANCEL)
                for stream in streams
            )
        )
        assert ask(server) == 200
        metrics = Scrape(server.url)
        assert metrics.value("model_inflight_requests", model="loop") == 0
        assert metrics.value("model_cancelled_total", model="loop") == 0


def is_under_way(peer: Peer, server: Cohort) -> bool:
    """Return True if the caller's call is running or was answered."""
    peer.read(0.01)
    running = Scrape(server.url).value("model_inflight_requests", model="loop") == 1
    return bool(peer.statuses) or running


def test_a_caller_who_leaves_again_and_again_has_one_run_at_a_time(server: Cohort) -> None:
    """Its last run is stopped before its next one begins, and other callers are answered."""
    headers = call_headers("ModelInfer", [("authorization", f"Bearer {SMALL}")])
    asked = raw_request("loop", {"n": np.array([[onnx_models.FOREVER]])}).SerializeToString()
    for _ in range(CALLS):
        with closing(Peer(server.grpc)) as peer:
            stream = peer.next_stream()
            peer.write(
                frame(HEADERS, END_HEADERS, stream, headers)
                + frame(DATA, END_STREAM, stream, message(asked))
            )
            wait_until(partial(is_under_way, peer, server))
        assert ask(server) == 200
    wait_until(lambda: Scrape(server.url).value("model_inflight_requests", model="loop") == 0)
