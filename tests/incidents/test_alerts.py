"""Alerts fired on purpose, and their entries of docs/runbook.md followed: check, then fix.

A real server and a real Prometheus with our rules; only the times that alerts wait are shortened.
`make recorded` writes what the series did as cases for promtool.
"""

from __future__ import annotations

import os
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

from tests import onnx_models
from tests.deploy.balancers import Balancer, haproxy, nginx
from tests.e2e.processes import MODELS, ROOT, end, free_port
from tests.incidents import recording
from tests.incidents.recording import Recorded
from tests.incidents.scenes import Alert, Replica, Scene, scene, watching
from tests.waiting import wait_until

FLOWER = {"inputs": {"features": [[5.1, 3.5, 1.4, 0.2]]}}
SLOW = {"inputs": {"x": [[0.5] * 4]}}


@pytest.fixture(scope="module")
def recorded() -> Iterator[list[Recorded]]:
    """What incidents did to the series, written down at the end where that is asked for."""
    cases: list[Recorded] = []
    yield cases
    if os.environ.get("INCIDENTS_RECORD"):
        recording.write(cases)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, recorded: list[Recorded]) -> Iterator[Scene]:
    """One replica with the flowers' model, and one whose runs take long and are well."""
    folder = tmp_path_factory.mktemp("shop")
    models = folder / "models"
    shutil.copytree(MODELS / "iris" / "1", models / "iris" / "1")
    onnx_models.save(onnx_models.slow(), models / "slow" / "1" / "model.onnx")
    with scene(models, folder, admin_token="secret", rollouts=folder / "rollouts.yaml") as opened:
        yield opened
        recorded += opened.recorded


def test_a_version_with_other_inputs_did_not_take_over(shop: Scene) -> None:
    """A push that nobody was served by said so in no metric. Now it is a ticket.

    The runbook: `held_back` in /health says what differs; `allow_signature_change` lets it serve.
    """
    other, config = shop.models / "iris" / "2", shop.models / "iris" / "config.yaml"
    with shop.incident("CohortVersionHeldBack") as alert:
        onnx_models.save(onnx_models.identity(shape=("N", 9)), other / "model.onnx")
        alert.fires("warning")
        assert "iris/2" in shop.replica.health()["held_back"]
        config.write_text("allow_signature_change: true\n")
        wait_until(lambda: shop.replica.server.get("/models/iris").json()["default_version"] == "2")
        alert.ends()
    shutil.rmtree(other)
    config.unlink()
    wait_until(lambda: shop.replica.server.get("/models/iris").json()["default_version"] == "1")


@pytest.mark.long
def test_a_config_had_a_typing_mistake(shop: Scene) -> None:
    """The model went on by its former config, and only the log said so. Now it is a ticket.

    The runbook: /health names the file and the key; correct it.
    """
    config = shop.models / "iris" / "config.yaml"
    with shop.incident("CohortModelsFolderInvalid") as alert:
        config.write_text("batching: {max_batchsize: 4}\n")
        alert.fires("warning")
        assert "max_batchsize" in shop.replica.health()["problems"][0]
        assert shop.ask("iris", FLOWER) == [200]
        config.write_text("batching: {max_batch_size: 4}\n")
        alert.ends()
    config.unlink()


@pytest.mark.long
def test_a_push_never_served(shop: Scene) -> None:
    """A new model whose only version is broken woke somebody. Now it is a ticket.

    The runbook: the version's page says why; publish a corrected one.
    """
    file = shop.models / "new" / "1" / "model.onnx"
    with shop.incident("CohortVersionUnavailable") as alert:
        file.parent.mkdir(parents=True)
        file.write_bytes(b"no model at all")
        alert.fires("warning")
        assert shop.replica.server.get("/models/new/versions/1").json()["reason"]
        Alert("CohortModelUnavailable", shop.watched).stays_silent()
        shutil.copy(MODELS / "iris" / "1" / "model.onnx", file)
        alert.ends()
    shutil.rmtree(file.parents[1])


@pytest.mark.long
def test_a_model_became_unavailable(shop: Scene) -> None:
    """Its file was overwritten while it served, and a restart found nothing else. That is critical.

    The runbook: the model's page says why; put the last working version back.
    """
    file = shop.models / "iris" / "1" / "model.onnx"
    with shop.incident("CohortModelUnavailable") as alert:
        file.write_bytes(b"no model at all")
        wait_until(lambda: shop.replica.health()["problems"])
        assert shop.ask("iris", FLOWER) == [200]  # what was loaded serves on
        shop.replica.server.stop()
        shop.replica.start(ready=False)
        alert.fires("critical")
        assert shop.ask("iris", FLOWER) == [503]
        (version,) = shop.replica.server.get("/models/iris").json()["versions"]
        assert version["reason"]
        shutil.copy(MODELS / "iris" / "1" / "model.onnx", file)
        alert.ends()
        assert shop.ask("iris", FLOWER) == [200]


@pytest.mark.long
def test_a_model_was_slow_on_purpose(shop: Scene) -> None:
    """A healthy model of 150 ms was critical within three minutes. Now its own objective counts.

    The runbook, where the objective cannot be met on a quiet machine: raise it.
    """
    config = shop.models / "slow" / "config.yaml"
    with shop.incident("CohortLatencyBudgetBurn", keep=False) as alert:
        assert set(shop.ask("slow", SLOW, times=20)) == {200}
        alert.stays_silent()
        config.write_text("objective_ms: 0.001\n")
        metric = "model_latency_objective_seconds"
        shop.watched.wait_for(f'{metric}{{model="slow"}} == 1e-6')
        (version,) = shop.replica.server.get("/models/slow").json()["versions"]
        assert version["objective_ms"] == 0.001
        shop.watched.wait_for('instance_model:slow_requests:sum{model="slow"} == 0')

        def fires() -> bool:
            shop.ask("slow", SLOW, times=20)
            return bool(shop.watched.query(f'ALERTS{{alertname="{alert.name}"}}'))

        wait_until(fires)
        alert.fires("critical")
        config.write_text("objective_ms: 60000\n")
        alert.ends()
    config.unlink()


@pytest.mark.long
def test_a_gpu_was_asked_for_and_not_there(shop: Scene) -> None:
    """Every CPU image had this alert for ever. Now who names another provider has it.

    The runbook: the version's page says what was refused and why; where the CPU is meant, say so.
    """
    if shop.replica.server.get("/models/iris/versions/1").json()["providers"]["active"] != "cpu":
        pytest.skip("for a machine without a GPU")
    config = shop.models / "iris" / "config.yaml"
    with shop.incident("CohortProviderFallback") as alert:
        alert.stays_silent()
        config.write_text("providers: [cuda, cpu]\n")
        alert.fires("warning")
        told = shop.replica.server.get("/models/iris/versions/1").json()["providers"]
        assert told["fallbacks"][0]["reason"]
        config.write_text("providers: [cpu]\n")
        alert.ends()
    config.unlink()


@pytest.mark.long
def test_a_model_was_removed_while_it_was_asked_for(shop: Scene) -> None:
    """Its callers got 404, which is in nobody's budget. Now it is critical.

    The runbook: put the folder back.
    """
    kept = shop.models.with_name("kept")
    shop.ask("iris", FLOWER)
    with shop.incident("CohortModelGone", keep=False) as alert:
        shop.ask("iris", FLOWER, times=20)
        (shop.models / "iris").rename(kept)
        alert.fires("critical")
        assert shop.ask("iris", FLOWER) == [404]
        kept.rename(shop.models / "iris")
        alert.ends()


@pytest.mark.long
def test_a_models_folder_was_mistyped(tmp_path: Path, recorded: list[Recorded]) -> None:
    """The server said it was ready, with nothing to serve. Now it is not, and that is a ticket.

    The runbook: /health says what is not there; put it there.
    """
    models = tmp_path / "modles"
    with scene(models, tmp_path, ready=False) as found:
        with found.incident("CohortNotReady") as alert:
            alert.fires("warning")
            assert found.replica.health()["reason"] == "there is no model to serve"
            assert "folder not found" in found.replica.health()["problems"][0]
            shutil.copytree(MODELS / "iris", models / "iris")
            alert.ends()
        found.replica.server.wait_for("/health/ready")
        recorded += found.recorded


@pytest.mark.long
def test_one_of_two_replicas_hung(tmp_path: Path, recorded: list[Recorded]) -> None:
    """Only a warning fired. Now that one replica is left is critical.

    The runbook: `kill -9`, since a process that is stopped takes no SIGTERM; start it again.
    """
    replicas = [Replica(MODELS, tmp_path / name) for name in ("one", "two")]
    try:
        for replica in replicas:
            replica.start()
        with watching(tmp_path, replicas) as watched:
            watched.wait_for("service:replicas_ready:count == 2")
            found = Scene(MODELS, replicas[0], watched)
            with found.incident("CohortLastReplica") as alert:
                replicas[1].server.process.send_signal(signal.SIGSTOP)
                alert.fires("critical")
                with pytest.raises(httpx.TimeoutException):  # the runbook's check
                    httpx.get(f"{replicas[1].server.url}/health/live", timeout=2)
                replicas[1].server.stop(kill=signal.SIGKILL)
                replicas[1].start()
                alert.ends()
            recorded += found.recorded
    finally:
        for replica in replicas:
            replica.close()


@contextmanager
def by_haproxy(balancer: Balancer) -> Iterator[str]:
    """HAProxy counts its responses itself."""
    yield f"127.0.0.1:{balancer.metrics_port}"


@contextmanager
def by_mtail(balancer: Balancer) -> Iterator[str]:
    """What counts nginx's responses by its log; gives its host and port."""
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
@pytest.mark.parametrize(("before", "counted"), [(nginx, by_mtail), (haproxy, by_haproxy)])
def test_callers_got_errors_that_no_replica_counted(
    tmp_path: Path, before: Any, counted: Any
) -> None:
    """172 of 599 requests got 504 from nginx, and no budget lacked anything. Now one does.

    The runbook: the balancer's log says who was asked; start that replica again.
    """
    replica = Replica(MODELS, tmp_path / "replica")
    try:
        replica.start()
        ports = [replica.port, free_port(), free_port()]  # nobody answers at two of them
        with (
            before(ports, tmp_path) as balancer,
            counted(balancer) as counts,
            watching(tmp_path, [replica], balancer=[counts]) as watched,
        ):
            found = Scene(MODELS, replica, watched)

            def ask(seconds: float) -> set[int]:
                with ThreadPoolExecutor(16) as callers:
                    asked = [callers.submit(call, monotonic() + seconds) for _ in range(16)]
                return set().union(*(one.result() for one in asked))

            def call(until: float) -> set[int]:
                statuses, url = set(), f"{balancer.url}/models/iris/predict"
                while monotonic() < until:
                    statuses.add(httpx.post(url, json=FLOWER, timeout=60).status_code)
                return statuses

            assert 200 in ask(2)
            watched.wait_for("instance:balancer_requests:sum > 0")
            with found.incident("CohortCallersBudgetBurn", keep=False) as alert:
                failures = 'sum(instance_model:failures:sum{model="iris"})'
                known = watched.value(failures)
                replica.server.stop(kill=signal.SIGKILL)
                fires = f'ALERTS{{alertname="{alert.name}"}}'
                wait_until(lambda: 200 not in ask(1) and watched.query(fires))
                alert.fires("critical")
                assert re.search('"status":50[234]', balancer.log.read_text())
                assert watched.value(failures) <= known
                replica.start()

                def ends() -> bool:
                    ask(1)
                    return not watched.query(fires)

                wait_until(ends)
    finally:
        replica.close()
