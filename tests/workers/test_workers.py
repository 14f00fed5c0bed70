"""Several workers on one port, as real processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from tests import onnx_models
from tests.certificates import serve_with, trusting
from tests.e2e.load import encode
from tests.e2e.processes import COMMAND, MODELS, cohort, free_port
from tests.e2e.scrape import Scrape
from tests.e2e.test_stopping import NOTICE, stop_without_loss
from tests.waiting import PATIENCE, until, wait_until
from tests.workers.hosts import (
    calling,
    connections_of,
    host,
    port_of,
    wait_for_all,
    workers_of,
)

INPUTS = {"features": [[5.1, 3.5, 1.4, 0.2]]}
REQUEST = encode("/models/iris/predict", {"inputs": INPUTS})
TOKEN = {"authorization": "Bearer secret"}
OK, UNAVAILABLE = 200, 503

FEW = 5

WATCHDOG = 10.0
"""Seconds: the worker that does not hang gives a sign of life in them on any machine."""


async def test_connections_are_spread_evenly(tmp_path: Path) -> None:
    """64 that are kept alive are shared by three workers, and so are those after some closed.

    They differ by a few: the parent learns a moment later that a connection has closed.
    """
    with host(tmp_path, 3) as server:
        port, pids = port_of(server), workers_of(server)

        def spread() -> list[int]:
            return sorted(connections_of(pid, port) for pid in pids)

        await until(lambda: sum(spread()) == 0)
        async with calling(server, REQUEST, 64) as callers:
            assert {await one.ask() for one in callers} == {OK}
            assert sum(spread()) == 64
            assert spread()[-1] - spread()[0] <= FEW, spread()
            gone = callers[:32]
            await asyncio.gather(*(one.close() for one in gone))
            await until(lambda: sum(spread()) == 32)
            for _ in range(FEW):  # the parent gives each, and learns of closed ones
                await asyncio.to_thread(server.get, "/health/live")
            for one in gone:
                await one.connect()
                await one.ask()
            assert sum(spread()) == 64
            assert spread()[-1] - spread()[0] <= FEW, spread()


async def test_a_worker_that_is_killed_takes_its_own_callers_alone(tmp_path: Path) -> None:
    """All others are answered on, another one takes its place, and no count goes back."""
    with host(tmp_path, 2) as server:
        async with calling(server, REQUEST, 16) as callers:
            stop = asyncio.Event()
            asking = asyncio.gather(*(one.ask_until(stop) for one in callers))
            await until(lambda: all(one.answered >= 50 for one in callers))
            victim, other = workers_of(server)
            counted = await asyncio.to_thread(inferences, server.url)
            os.kill(victim, signal.SIGKILL)
            await until(lambda: any(one.lost for one in callers))
            shown = [counted]
            while len(workers_of(server)) < 2 or victim in workers_of(server):
                shown.append(await asyncio.to_thread(inferences, server.url))
            await asyncio.to_thread(wait_for_all, server, 2, frozenset({victim}))
            answered = {one: one.answered for one in callers}
            await until(
                lambda: all(one.answered > answered[one] for one in callers if not one.lost)
            )
            stop.set()
            await asking
            shown.append(await asyncio.to_thread(inferences, server.url))
            assert shown == sorted(shown)
            assert 0 < sum(one.lost for one in callers) <= 8
            assert {status for one in callers for status in one.statuses} == {OK}
            assert other in workers_of(server)
            restarts = Scrape(server.url).by("server_worker_restarts_total", "cause")
            assert restarts == {"crashed": 1, "hung": 0, "renewed": 0}


@pytest.mark.parametrize("signal_of_death", [signal.SIGFPE, signal.SIGKILL])
def test_what_a_dying_worker_held_is_never_run_again(tmp_path: Path, signal_of_death: int) -> None:
    """Its callers' connections close, and no other worker runs it: the run may be the cause.

    The division that the processor refuses ends a process by SIGFPE.
    """
    onnx_models.save(onnx_models.loop(), tmp_path / "models/slow/1/model.onnx")
    (tmp_path / "models/slow/config.yaml").write_text("timeout_ms: 300000\n")

    def ask(trips: int) -> str:
        try:
            body = {"inputs": {"n": [[trips]]}}
            answer = httpx.post(server.url + "/models/slow/predict", json=body, timeout=PATIENCE)
        except httpx.TransportError:
            return "closed"
        assert answer.status_code == OK, answer.text
        assert answer.json()["outputs"]["y"] == [[float(trips)]]
        return "answered"

    with (
        host(tmp_path, 2, tmp_path / "models") as server,
        ThreadPoolExecutor(8) as callers,
    ):
        before = Scrape(server.url).value("model_inference_total", model="slow")
        asked = [callers.submit(ask, 500_000 + number) for number in range(8)]
        wait_until(lambda: Scrape(server.url).value("model_inflight_requests", model="slow") == 8)
        victim, other = workers_of(server)
        os.kill(victim, signal_of_death)
        results = [one.result() for one in asked]
        assert set(results) == {"answered", "closed"}
        assert other in wait_for_all(server, 2, frozenset({victim}))
        found = Scrape(server.url)
        assert found.value("model_inference_total", model="slow") - before == results.count(
            "answered"
        )
        assert found.value("model_inflight_requests", model="slow") == 0


def inferences(url: str) -> float:
    """Return how many requests all workers have counted."""
    return Scrape(url).value("model_inference_total", model="iris")


async def test_all_workers_are_counted(tmp_path: Path) -> None:
    """Each request counts once, whichever worker is scraped."""
    with host(tmp_path, 2) as server:
        async with calling(server, REQUEST, 8) as callers:
            for one in callers:
                for _ in range(5):
                    await one.ask()
            assert {inferences(server.url) for _ in range(4)} == {40}
            assert Scrape(server.url).value("server_workers_ready") == 2
        said = [json.loads(line) for line in server.logged.splitlines()]
        assert {one["worker"] for one in said if one["event"] == "version ready"} == {0, 1}


@pytest.mark.parametrize("headers", [{}, {"connection": "close"}], ids=["kept alive", "closed"])
async def test_sighup_replaces_all_workers_and_loses_no_request(
    tmp_path: Path, headers: dict[str, str]
) -> None:
    """Callers must reconnect, and find another worker; counts continue.

    Once as operators have it: new workers are new interpreters, of a parent that is small.
    """
    with host(tmp_path, 2, program=COMMAND if headers else ()) as server:
        before = frozenset(workers_of(server))
        request = encode("/models/iris/predict", {"inputs": INPUTS}, headers)
        async with calling(server, request, 8) as callers:
            stop = asyncio.Event()
            asking = asyncio.gather(*(one.ask_until(stop) for one in callers))
            server.process.send_signal(signal.SIGHUP)
            await asyncio.to_thread(wait_for_all, server, 2, before)
            stop.set()
            await asking
            assert not any(one.lost for one in callers), server.logged
            assert {status for one in callers for status in one.statuses} == {OK}
            assert inferences(server.url) == sum(one.answered for one in callers)
            assert "looking at all files" in server.logged


@pytest.mark.parametrize("keep_alive", [True, False])
async def test_sigterm_under_load_loses_no_request_of_any_worker(
    tmp_path: Path, keep_alive: bool
) -> None:
    """As with one process, each is answered until the door closes, and the status is 0."""
    with host(tmp_path, 2, drain_notice_seconds=NOTICE) as server:
        await stop_without_loss(server, 16, keep_alive=keep_alive)


async def test_tls_is_spoken_on_connections_that_are_passed(tmp_path: Path) -> None:
    """Nothing is lost when the host stops."""
    ca = trustme.CA()
    settings: dict[str, Any] = dict(serve_with(ca, tmp_path))
    trust = trusting(ca, tmp_path)
    with cohort(
        MODELS, tmp_path, trust=trust, workers=2, drain_notice_seconds=NOTICE, **settings
    ) as it:
        await stop_without_loss(it, 8, keep_alive=True)


def test_systemd_hears_of_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent sends the messages: its workers' signs are for it alone."""
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        heard: list[bytes] = []

        def hear() -> None:  # all the time, as systemd does: the parent does not wait
            while said := listener.recv(4096):
                heard.append(said)

        with ThreadPoolExecutor() as pool:
            pool.submit(hear)
            try:
                with host(tmp_path, 2) as server:
                    assert server.stop() == 0
                wait_until(lambda: b"STOPPING=1" in heard)
            finally:
                listener.shutdown(socket.SHUT_RD)
    said = [one for one in heard if one != b"WATCHDOG=1"]
    assert said == [b"READY=1\nSTATUS=serving", b"STOPPING=1"]


async def test_a_second_signal_ends_all_workers_at_once(tmp_path: Path) -> None:
    """The notice period does not matter; the status is that of one process."""
    with host(tmp_path, 2, drain_notice_seconds=3600) as server:
        pids = workers_of(server)
        server.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(server.wait_for, "/health/ready", UNAVAILABLE)
        server.process.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(server.process.wait, PATIENCE) == 128 + signal.SIGINT
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


async def test_workers_do_not_outlive_their_parent(tmp_path: Path) -> None:
    """They would get no further connections."""
    with host(tmp_path, 2) as server:
        pids = workers_of(server)
        server.stop(kill=signal.SIGKILL)
        await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


async def test_a_worker_that_hangs_is_killed_and_replaced(tmp_path: Path) -> None:
    """Until then new connections go to the others."""
    with host(tmp_path, 2, watchdog_seconds=WATCHDOG) as server:
        hung, other = workers_of(server)
        os.kill(hung, signal.SIGSTOP)
        await asyncio.to_thread(wait_for_all, server, 2, frozenset({hung}))
        assert other in workers_of(server)
        assert f"no sign of life for {WATCHDOG:g} s: killed the worker" in server.logged


async def test_an_unload_holds_in_all_workers_and_in_new_ones(tmp_path: Path) -> None:
    """The answer comes once all have done it; so does that of a load."""
    with host(tmp_path, 2, admin_token="secret") as server:
        async with calling(server, REQUEST, 4) as callers:
            assert [await one.ask() for one in callers] == [OK] * 4
            unload = httpx.post(f"{server.url}/admin/models/iris/unload", headers=TOKEN)
            assert unload.status_code == OK, unload.text
            assert [await one.ask() for one in callers] == [UNAVAILABLE] * 4
            victim, other = workers_of(server)
            os.kill(victim, signal.SIGKILL)
            await asyncio.to_thread(wait_for_all, server, 2, frozenset({victim}))
            os.kill(other, signal.SIGKILL)  # so that the new one answers for sure
            await until(lambda: other not in workers_of(server))
            found = await asyncio.to_thread(server.wait_for, "/health")
            assert found.json()["models"]["iris"] == {"1": "UNAVAILABLE"}
            await asyncio.to_thread(wait_for_all, server, 2, frozenset({victim, other}))
            load = httpx.post(f"{server.url}/admin/models/iris/load", headers=TOKEN, timeout=60)
            assert load.status_code == OK, load.text
            async with calling(server, REQUEST, 4) as again:
                assert [await one.ask() for one in again] == [OK] * 4


def test_the_port_for_grpc_is_shared(tmp_path: Path) -> None:
    """Only the workers share it: a second server cannot bind it."""
    port = free_port()
    with (
        host(tmp_path, 2, grpc_port=port),
        pytest.raises(AssertionError, match=r"(?s)ended with 1:.*address already in use"),
        host(tmp_path, 2, grpc_port=port),
    ):
        pass


async def test_settings_that_are_wrong_end_the_start(tmp_path: Path) -> None:
    """A port in use and errors that only a worker finds are reported with the reason."""
    with host(tmp_path, 2) as server:
        taken = await asyncio.create_subprocess_exec(
            *("env", f"COHORT_PORT={port_of(server)}", "COHORT_LOG_FORMAT=json"),
            *("COHORT_WORKERS=2", *COMMAND, "serve"),
            stderr=asyncio.subprocess.PIPE,
        )
        _, said = await taken.communicate()
        assert taken.returncode == 1
        assert "already in use" in json.loads(said.splitlines()[-1])["reason"]
    missing = tmp_path / "missing.pem"
    with (
        pytest.raises(AssertionError, match=r"(?s)ended with 1:.*missing\.pem"),
        host(tmp_path, 2, tls_cert=missing, tls_key=missing),
    ):
        pass


def test_a_worker_that_an_operator_ends_is_replaced(tmp_path: Path) -> None:
    """SIGTERM to it alone makes it drain, and another one takes its place."""
    with host(tmp_path, 2) as server:
        ended, other = workers_of(server)
        os.kill(ended, signal.SIGTERM)
        wait_for_all(server, 2, frozenset({ended}))
        assert other in workers_of(server)
        wait_until(lambda: not Path(f"/proc/{ended}").exists())
