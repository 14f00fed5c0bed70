"""Real servers on addresses of both families and on Unix sockets, alone and as workers."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from cohort.rpc import inference_pb2 as messages
from tests.e2e.processes import MODELS, Cohort, cohort, end, free_port
from tests.rpc.client import PATH
from tests.waiting import PATIENCE, wait_until

ROW = {"inputs": {"features": [[5.1, 3.5, 1.4, 0.2]]}}


def probe(**settings: object) -> int:
    """Return the exit status of the command of the image's HEALTHCHECK."""
    environment = {f"COHORT_{name.upper()}": str(value) for name, value in settings.items()}
    command = [sys.executable, "-m", "cohort.connections.probe"]
    return subprocess.run(command, env={**os.environ, **environment}, check=False).returncode


def ready_over_grpc(target: str) -> bool:
    """Return True if a gRPC client that connects to `target` finds the server ready."""
    with grpc.insecure_channel(target) as channel:
        ask = channel.unary_unary(
            f"{PATH}/ServerReady",
            request_serializer=messages.ServerReadyRequest.SerializeToString,
            response_deserializer=messages.ServerReadyResponse.FromString,
        )
        return bool(ask(messages.ServerReadyRequest(), timeout=PATIENCE).ready)


def check(server: Cohort, hosts: list[str], grpc_port: int) -> None:
    port = httpx.URL(server.url).port
    for host in hosts:
        url = f"http://{host}:{port}/models/iris/predict"
        assert httpx.post(url, json=ROW, timeout=PATIENCE).status_code == 200
        target = f"{host}:{grpc_port}"
        wait_until(partial(_answers, target))
        assert ready_over_grpc(target)


def _answers(target: str) -> bool:
    host, _, port = target.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=1).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("host", ["::", "127.0.0.1,[::1]"])
@pytest.mark.parametrize("workers", [1, 2])
def test_both_families_are_served(tmp_path: Path, host: str, workers: int) -> None:
    """One process and workers serve HTTP and gRPC; the image's check finds both."""
    settings: dict[str, Any] = {"host": host, "workers": workers, "grpc_port": free_port()}
    with cohort(MODELS, tmp_path, **settings) as server:
        check(server, ["127.0.0.1", "[::1]"], settings["grpc_port"])
        assert probe(host=host, port=httpx.URL(server.url).port) == 0
        assert server.stop() == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_a_unix_socket_is_served(tmp_path: Path, workers: int) -> None:
    """It replaces the port, for any number of callers, until a normal stop."""
    path = tmp_path / "cohort.sock"
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("COHORT_")},
        "COHORT_MODELS": str(MODELS),
        "COHORT_STATE": str(tmp_path / "state"),
        "COHORT_CACHE": str(tmp_path / "cache"),
        "COHORT_GRPC_PORT": "0",
        "COHORT_INSPECTION_SECONDS": "0",
        "COHORT_DRAIN_NOTICE_SECONDS": "0",
        "COHORT_MAX_CONNECTIONS_PER_ADDRESS": "2",
    }
    command = [sys.executable, "-m", "cohort", "serve", "--uds", str(path)]
    command += ["--workers", str(workers)]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stderr=log)
    try:
        wait_until(lambda: probe(uds=path) == 0, seconds=120)
        clients = [httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) for _ in range(5)]
        for client in clients:
            answer = client.post("http://localhost/models/iris/predict", json=ROW)
            assert answer.status_code == 200, answer.text
        for client in clients:
            client.close()
        process.terminate()
        assert process.wait(PATIENCE) == 0, (tmp_path / "log").read_text()
    finally:
        end(process)
    assert probe(uds=path) == 1
