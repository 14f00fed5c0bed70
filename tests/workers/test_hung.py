"""Workers that hang, as a stopped process does, and who must not wait for them."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import trustme

from cohort.rpc import inference_pb2 as messages
from tests.certificates import serve_with, trusting
from tests.e2e.processes import MODELS, Cohort, cohort, free_port
from tests.waiting import PATIENCE, wait_until
from tests.workers.hosts import host, wait_for_all, workers_of

LIVE = "/inference.GRPCInferenceService/ServerLive"

CONNECTIONS = 12

LONG = 3600


def answers(server: Cohort, trust: grpc.ChannelCredentials | None = None) -> bool:
    """Return True if a call on a new connection is answered, over TLS if `trust` is given."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    with (
        grpc.insecure_channel(server.grpc, options)
        if trust is None
        else grpc.secure_channel(server.grpc, trust, options)
    ) as channel:
        live: Any = channel.unary_unary(LIVE, None, messages.ServerLiveResponse.FromString)
        try:
            return bool(live(b"", timeout=2).live)
        except grpc.RpcError:
            return False


def test_a_worker_that_hangs_keeps_no_share_of_new_connections(tmp_path: Path) -> None:
    """Connections of gRPC that it received before the detection are lost. Then it is replaced."""
    with host(tmp_path, 2, grpc_port=free_port()) as server:
        assert all(answers(server) for _ in range(4))
        hung, other = workers_of(server)
        os.kill(hung, signal.SIGSTOP)
        lost = sum(not answers(server) for _ in range(CONNECTIONS))
        assert lost <= 2
        wait_for_all(server, 2, frozenset({hung}))
        assert other in workers_of(server)
        assert all(answers(server) for _ in range(4))


def test_grpc_speaks_tls_on_connections_that_are_passed(tmp_path: Path) -> None:
    """HTTP does as well, and the stop ends as usual."""
    ca = trustme.CA()
    trust = grpc.ssl_channel_credentials(ca.cert_pem.bytes())
    settings: dict[str, Any] = dict(serve_with(ca, tmp_path))
    settings |= {"trust": trusting(ca, tmp_path), "workers": 2, "grpc_port": free_port()}
    with cohort(MODELS, tmp_path, **settings) as server:
        assert all(answers(server, trust) for _ in range(4))
        assert server.stop() == 0


@pytest.mark.parametrize("again", [False, True])
def test_a_worker_that_hangs_does_not_hold_the_stop(tmp_path: Path, again: bool) -> None:
    """The parent kills it when its time has ended, or at once after a second signal."""
    with host(tmp_path, 2, drain_seconds=LONG if again else 1) as server:
        hung, other = workers_of(server)
        os.kill(hung, signal.SIGSTOP)
        server.process.send_signal(signal.SIGTERM)
        if again:
            wait_until(lambda: not Path(f"/proc/{other}").exists())
            server.process.send_signal(signal.SIGTERM)
        status = server.process.wait(PATIENCE)
        assert status == (128 + signal.SIGTERM if again else 128 + signal.SIGKILL)
        assert not Path(f"/proc/{hung}").exists()
        assert "it did not end in time: killed the worker" in server.logged


@pytest.mark.parametrize("again", [False, True])
def test_a_server_that_hangs_does_not_hold_the_stop(tmp_path: Path, again: bool) -> None:
    """Its parent, which the watchdog is, kills it likewise."""
    drain_seconds = LONG if again else 1
    with cohort(MODELS, tmp_path, drain_seconds=drain_seconds, watchdog_seconds=LONG) as server:
        (hung,) = workers_of(server)
        os.kill(hung, signal.SIGSTOP)
        server.process.send_signal(signal.SIGTERM)
        if again:
            server.process.send_signal(signal.SIGINT)
        assert server.process.wait(PATIENCE) == 128 + signal.SIGKILL
        assert "did not stop in time: killed the server" in server.logged


STOPS_AT_FIRST = """
import os, signal, sys
from pathlib import Path

import cohort.cli.worker_parent as worker_parent
from cohort.__main__ import main

worker_parent.STARTING_SECONDS = worker_parent.HUNG_SECONDS = 2.0
met = Path({met!r})
if "_COHORT_WORKER" in os.environ and not met.exists():
    met.write_text(str(os.getpid()))
    os.kill(os.getpid(), signal.SIGSTOP)
sys.exit(main())
"""


def test_a_worker_that_hangs_before_it_has_started_is_replaced(tmp_path: Path) -> None:
    """It never gave a sign of life: the first one has a limit as well."""
    met = tmp_path / "met"
    program = [sys.executable, "-c", STOPS_AT_FIRST.format(met=str(met))]
    with cohort(MODELS, tmp_path, workers=2, program=program) as server:
        workers = wait_for_all(server, 2)
        assert int(met.read_text()) not in workers
        assert "no sign of life for 2 s: killed the worker" in server.logged


@pytest.mark.parametrize("what", ["unload", "load"])
def test_operators_hear_which_worker_hangs(tmp_path: Path, what: str) -> None:
    """The answer takes seconds, though its watchdog is patient; the other workers have done it."""
    admin: dict[str, Any] = {"admin_token": "t" * 32}
    with host(tmp_path, 2, watchdog_seconds=LONG, **admin) as server:
        hung, other = workers_of(server)
        os.kill(hung, signal.SIGSTOP)
        path = f"/v2/repository/models/iris/{what}"
        for _ in range(3):  # a connection that the hung one was given before that was noticed
            with suppress(httpx.TimeoutException):
                answered = httpx.post(
                    server.url + path,
                    headers={"authorization": "Bearer " + "t" * 32},
                    timeout=10,
                )
                break
        assert answered.status_code == 503
        assert f"(process {hung}) does not answer for 5 s" in answered.json()["error"]
        os.kill(hung, signal.SIGCONT)
        assert other in wait_for_all(server, 2)
