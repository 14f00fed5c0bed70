"""A process that has no descriptors left, and callers who do not read."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests import onnx_models
from tests.chaos.callers import callers, put
from tests.chaos.limits import limited
from tests.e2e.processes import Cohort, cohort
from tests.http.wire import request
from tests.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has prlimit")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[Cohort]:
    folder = tmp_path_factory.mktemp("limits")
    put(folder / "models")
    put(folder / "models", "other")
    onnx_models.save(onnx_models.identity(), folder / "models/same/1/model.onnx")
    with cohort(folder / "models", folder, cache=cache) as server:
        yield server


def test_without_descriptors_nothing_is_unloaded(server: Cohort) -> None:
    """Connected clients are answered; health reports the problem until there are descriptors."""
    process = Path(f"/proc/{server.process.pid}")
    with httpx.Client(base_url=server.url) as connected, callers(server) as heard:
        heard.more()
        assert connected.get("/health").json()["status"] == "healthy"
        with limited(server, "nofile", len([*(process / "fd").iterdir()])):
            wait_until(lambda: "Too many open files" in connected.get("/health").text)
            heard.more()
            assert "times" in connected.get("/models").text
        wait_until(lambda: not connected.get("/health").json()["problems"])
        server.wait_for("/health/ready")
    assert set(heard.statuses) == {"200"}


def test_callers_who_do_not_read_hold_up_nobody(server: Cohort) -> None:
    """Dozens have a long answer on the way; a caller that reads at last gets all of them."""
    body = {"inputs": {"x": [[1.5, 2.5, 3.5]] * 5000}}
    sent = request("/models/same/predict", json.dumps(body).encode())
    with ExitStack() as stack, callers(server) as heard:
        address = httpx.URL(server.url)
        slow = [
            stack.enter_context(socket.create_connection((address.host, address.port or 80)))
            for _ in range(24)
        ]
        for one in slow:
            one.settimeout(PATIENCE)
            one.sendall(sent)
        heard.more(200)
        for one in slow:
            with one.makefile("rb") as answer:
                assert answer.readline().startswith(b"HTTP/1.1 200")
    assert set(heard.statuses) == {"200"}
