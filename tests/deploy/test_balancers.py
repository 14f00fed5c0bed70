"""The shipped balancers' configurations, at work: no caller sees a replica come or go."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import grpc
import httpx
import numpy as np
import pytest
import trustme
from grpc import aio

from tests import onnx_models
from tests.deploy.balancers import (
    Balancer,
    Fleet,
    Start,
    answering,
    calling,
    fleet,
    haproxy,
    nginx,
    saying,
)
from tests.e2e.processes import free_port
from tests.rpc.client import Client
from tests.waiting import PATIENCE, until, wait_until

both = pytest.mark.parametrize("start", [nginx, haproxy])
X = np.random.default_rng(0).random((93, 100)).round(7).tolist()
BODIES = {"1 KB": X[:1], "100 KB": X}
ENCODED = {name: json.dumps({"inputs": {"x": rows}}).encode() for name, rows in BODIES.items()}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "models"
    publish(folder, 1)
    return folder


def publish(models: Path, version: int) -> None:
    """Write a version aside and move it in whole."""
    aside = models.parent / f"aside-{version}"
    onnx_models.save(onnx_models.mlp(features=100, seed=version), aside / "model.onnx")
    (models / "mlp").mkdir(parents=True, exist_ok=True)
    aside.rename(models / "mlp" / str(version))


@pytest.fixture(scope="module")
def replicas(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet(models, tmp_path_factory.mktemp("fleet")) as started:
        yield started


async def until_asked(replicas: Fleet, number: int) -> None:
    """Wait until the balancer sends requests to a replica that has just started."""
    await asyncio.to_thread(wait_until, lambda: replicas.asked(number) >= 10)


@both
async def test_callers_notice_nothing(
    start: Start, replicas: Fleet, models: Path, tmp_path: Path
) -> None:
    """No request fails while replicas are killed, stopped, restarted and given a new version."""
    assert [round(len(body) / 1000) for body in ENCODED.values()] == [1, 101]
    new = max(int(version.name) for version in (models / "mlp").iterdir()) + 1
    with start(replicas.ports, tmp_path) as balancer:
        async with calling(balancer.port, ENCODED) as calls:
            await until_asked(replicas, 2)
            for number, kill, status in (
                (0, signal.SIGKILL, -9),  # one dies
                (1, signal.SIGTERM, 0),  # and others are restarted
                (2, signal.SIGTERM, 0),
            ):
                assert await asyncio.to_thread(replicas.end, number, kill=kill) == status
                await asyncio.to_thread(replicas.start, number)
                await until_asked(replicas, number)
            publish(models, new)
            await until(lambda: calls.versions[str(new)] >= 200)
    assert calls.failed == Counter()
    assert calls.versions.keys() == {str(new - 1), str(new)}
    assert len(calls.kinds) == 4
    assert min(calls.kinds.values()) > 200, calls.kinds
    assert calls.versions.total() > 1000, calls.kinds


@both
def test_ids_go_through(start: Start, replicas: Fleet, tmp_path: Path) -> None:
    """A caller's id comes back once; a caller without one gets one that is also in the log."""
    with start(replicas.ports, tmp_path) as balancer:
        sent = httpx.get(balancer.url + "/health/ready", headers={"x-request-id": "mine-1"})
        made = httpx.post(balancer.url + "/predict", content=ENCODED["1 KB"])
        refused = httpx.post(
            balancer.url + "/models/none/predict",
            content=ENCODED["1 KB"],
            headers={"x-request-id": "not one"},
        )
        answered = {answer.headers["x-request-id"] for answer in (sent, made, refused)}
        # Written after the answer, and by two threads in no order.
        wait_until(lambda: answered <= ids_in(balancer.log))
    assert sent.headers.get_list("x-request-id") == ["mine-1"]
    assert made.status_code == 200
    assert len(made.headers["x-request-id"]) >= 32
    assert refused.status_code == 404
    assert len(refused.headers["x-request-id"]) >= 32


def ids_in(log: Path) -> set[str]:
    """The request ids of the lines that a balancer has written to the end."""
    written, _, _ = log.read_text().rpartition("\n")
    return {json.loads(line)["request_id"] for line in written.splitlines() if line[:1] == "{"}


@both
def test_bodies_have_a_limit(start: Start, replicas: Fleet, tmp_path: Path) -> None:
    """A body beyond COHORT_MAX_BODY_MB is refused by the balancer, before it is read."""
    head = f"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-length: {64 * 2**20 + 1}\r\n\r\n"
    with (
        start(replicas.ports, tmp_path) as balancer,
        socket.create_connection(("127.0.0.1", balancer.port), timeout=PATIENCE) as connection,
    ):
        connection.sendall(head.encode())
        assert connection.recv(1000).startswith(b"HTTP/1.1 413 ")


def stick_nginx(text: str) -> str:
    return text.replace(
        "    least_conn; # not one that is slow or holds what it was sent\n    # include",
        "    include",
    )


def stick_haproxy(text: str) -> str:
    return text.replace("    #   ", "    ")


@pytest.mark.parametrize(("start", "change"), [(nginx, stick_nginx), (haproxy, stick_haproxy)])
def test_sticky_callers_stay(start: Start, change: Callable[[str], str], tmp_path: Path) -> None:
    """The shipped option keeps a key on its replica, and only a dead one's keys move."""
    with named("a") as a, named("b") as b:
        with named("c") as c, start([a, b, c], tmp_path, change) as balancer:
            before = [where(balancer) for _ in range(3)]
            assert before[0] == before[1] == before[2]
            assert set(before[0].values()) == {"a", "b", "c"}
            gone = c
        with start([a, b, gone], tmp_path / "again", change) as balancer:
            after = where(balancer)
    assert {key for key in after if after[key] != before[0][key]} == {
        key for key, name in before[0].items() if name == "c"
    }


def where(balancer: Balancer) -> dict[str, str]:
    """Return the replica that answers each of forty callers."""
    with httpx.Client(base_url=balancer.url) as client:
        return {
            str(key): client.get("/", headers={"x-user-id": str(key)}).text for key in range(40)
        }


@contextmanager
def named(name: str) -> Iterator[int]:
    """Run a server that answers with a name; yield its port."""

    class Tell(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-length", str(len(name)))
            self.end_headers()
            self.wfile.write(name.encode())

        def log_message(self, *_: object) -> None:
            pass

    with answering(Tell) as port:
        yield port


@both
async def test_a_balancer_speaks_tls(start: Start, replicas: Fleet, tmp_path: Path) -> None:
    """The commented lines of the shipped file enable it, for HTTP and gRPC."""
    ca, https, grpcs = trustme.CA(), free_port(), free_port()
    certificate = ca.issue_cert("127.0.0.1")
    pem, key, both_in_one = (tmp_path / name for name in ("cohort.crt", "cohort.key", "cohort.pem"))
    certificate.cert_chain_pems[0].write_to_path(pem)
    certificate.private_key_pem.write_to_path(key)
    certificate.private_key_and_cert_chain_pem.write_to_path(both_in_one)

    def with_tls(text: str) -> str:
        for old, new in (
            ("# listen 443 ", f"listen 127.0.0.1:{https} "),
            ("# listen 8443 ", f"listen 127.0.0.1:{grpcs} "),
            ("/etc/nginx/cohort", f"{tmp_path}/cohort"),
            ("# bind :443 ", f"bind 127.0.0.1:{https} "),
            ("# bind :8443 ", f"bind 127.0.0.1:{grpcs} "),
            ("/etc/haproxy/cohort", f"{tmp_path}/cohort"),
        ):
            text = text.replace(old, new)
        return text

    trust = ssl.create_default_context(cadata=ca.cert_pem.bytes().decode())
    with start(replicas.ports, tmp_path, with_tls, grpc=replicas.grpc_ports):
        async with httpx.AsyncClient(verify=trust) as client:
            url = f"https://127.0.0.1:{https}/predict"
            answer = await client.post(url, content=ENCODED["1 KB"])
        assert answer.status_code == 200
        credentials = grpc.ssl_channel_credentials(ca.cert_pem.bytes())
        async with aio.secure_channel(f"127.0.0.1:{grpcs}", credentials) as channel:
            x = np.asarray(X[:1], np.float32)
            assert (await Client(channel).infer("mlp", {"x": x})).keys()


CUT = [
    b"content-length: 100\r\n\r\n{}",
    b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n",
]


@both
@pytest.mark.parametrize("rest", CUT, ids=["by length", "in chunks"])
def test_a_body_that_ends_too_early_is_no_whole_answer(
    start: Start, rest: bytes, tmp_path: Path
) -> None:
    """A begun answer cannot be requested again, so the caller's connection also breaks."""
    with (
        saying(b"HTTP/1.1 200 OK\r\n" + rest) as port,
        start([port] * 3, tmp_path) as balancer,
        pytest.raises(httpx.RemoteProtocolError),
    ):
        httpx.post(balancer.url + "/predict", content=b"{}")
