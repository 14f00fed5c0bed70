"""Alerts about replicas and their balancers, fired on purpose; see test_alerts.py."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import httpx
import pytest

from tests.deploy.balancers import Balancer, haproxy, nginx
from tests.e2e.processes import MODELS, ROOT, end, free_port
from tests.incidents.recording import Case
from tests.incidents.scenes import Alert, Replica, Scene, watching
from tests.waiting import PATIENCE, wait_until

FLOWER = {"inputs": {"features": [[5.1, 3.5, 1.4, 0.2]]}}
LIVE = "curl --max-time 2 $R/health/live"


@pytest.mark.long
def test_replicas_hung_until_one_was_left(tmp_path: Path, recorded: list[Case]) -> None:
    """Only a warning fired. Now the loss of half of them is critical, and so is a single one left.

    The runbook: use `kill -9`, since a stopped process does not handle SIGTERM; start it again.
    """
    models = tmp_path / "models"
    shutil.copytree(MODELS / "iris", models / "iris")
    replicas = [Replica(models, tmp_path / name) for name in "abcd"]
    try:
        for replica in replicas:
            replica.start()
        with watching(tmp_path, replicas) as watched:
            found = Scene(replicas[0], watched)
            all_ready = f"service:replicas_ready:count == {len(replicas)}"
            watched.wait_for(all_ready)
            with (
                found.quiet("CohortHalfOfReplicas", "replicas are replaced one by one"),
                found.quiet("CohortLastReplica", "replicas are replaced one by one"),
            ):
                for replica in replicas[2:]:
                    replica.server.stop()
                    replica.start()
                    watched.wait_for(all_ready)
            for name, hung in (("CohortHalfOfReplicas", 2), ("CohortLastReplica", 3)):
                with found.incident(name) as alert:
                    for replica in replicas[-hung:]:
                        replica.hang()
                    alert.fires("critical")
                    assert len(watched.query(f"{alert.quoted('server_ready')} == 1")) == 4 - hung
                    for replica in replicas[-hung:]:
                        replace(replica, alert)
                    alert.ends()
                    watched.wait_for(all_ready)
            recorded += found.recorded
    finally:
        for replica in replicas:
            replica.close()


def replace(replica: Replica, alert: Alert) -> None:
    """What the runbook does to one that hangs, and what runs replicas does then."""
    assert "timed out" in Alert("CohortReplicaDown", alert.watched, replica).run(LIVE)
    alert.run("kill -9 $pid", replica=replica)
    replica.server.process.wait()
    replica.start()


@contextmanager
def by_haproxy(balancer: Balancer) -> Iterator[str]:
    """HAProxy counts its responses itself."""
    yield f"127.0.0.1:{balancer.metrics_port}"


@contextmanager
def by_mtail(balancer: Balancer) -> Iterator[str]:
    """Run mtail, which counts nginx's responses from its log; yield its host and port."""
    address = f"127.0.0.1:{free_port()}"
    program = shutil.which("mtail")
    assert program, "this test needs mtail: apt-get install --no-install-recommends mtail"
    host, _, port = address.partition(":")
    command = [
        program,
        "--progs",
        str(ROOT / "deploy/nginx/cohort.mtail"),
        "--logs",
        str(balancer.log),
    ]
    process = subprocess.Popen(
        [*command, "--address", host, "--port", port],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield address
    finally:
        end(process)


@pytest.mark.long
@pytest.mark.parametrize(
    ("before", "counted"), [(nginx, by_mtail), (haproxy, by_haproxy)], ids=["nginx", "haproxy"]
)
def test_callers_got_errors_that_no_replica_counted(
    tmp_path: Path, recorded: list[Case], before: Any, counted: Any
) -> None:
    """172 of 599 requests got 504 from nginx, and no budget counted them. Now one does.

    The runbook: the balancer's log names the replica that does not answer; start it again.
    """
    replica = Replica(MODELS, tmp_path / "replica")
    try:
        replica.start()
        ports = [replica.port, free_port(), free_port()]  # two of them are closed
        with (
            before(ports, tmp_path) as balancer,
            counted(balancer) as counts,
            watching(tmp_path, [replica], balancer=[counts]) as watched,
        ):
            found = Scene(replica, watched)
            ask(balancer.url, 1)
            watched.wait_for("instance:balancer_requests:sum > 0")
            kind = before.__name__
            with found.quiet("CohortCallersBudgetBurn", f"two of three replicas are down, {kind}"):
                assert ask(balancer.url, 3) == {200}
                assert ask(balancer.url, 1, body={"inputs": {}}) == {400}
            with found.incident("CohortCallersBudgetBurn") as alert:
                failures = 'sum(instance_model:failures:sum{model="iris"})'
                known = watched.value(failures)
                replica.server.stop(kill=signal.SIGKILL)
                fires = f'ALERTS{{alertname="{alert.name}"}}'
                wait_until(lambda: 200 not in ask(balancer.url, 1) and watched.query(fires))
                alert.fires("critical")
                assert re.search('"status":50[234]', balancer.log.read_text())
                assert "connect" in alert.run(LIVE)
                assert watched.value(failures) <= known
                replica.start()

                def ends() -> bool:
                    ask(balancer.url, 1)
                    return not watched.query(fires)

                wait_until(ends)
            recorded += found.recorded
    finally:
        replica.close()


def ask(balancer: str, seconds: float, *, body: object = FLOWER) -> set[int]:
    """The statuses that sixteen callers get for so long."""
    url, until = f"{balancer}/models/iris/predict", monotonic() + seconds

    def call(_: int) -> set[int]:
        statuses = set()
        while monotonic() < until:
            statuses.add(httpx.post(url, json=body, timeout=PATIENCE).status_code)
        return statuses

    with ThreadPoolExecutor(16) as callers:
        return set().union(*callers.map(call, range(16)))
