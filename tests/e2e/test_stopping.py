"""A process that is asked to stop."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from collections import Counter
from pathlib import Path

import httpx
import pytest

from tests import onnx_models
from tests.e2e.processes import COMMAND, MODELS, ROOT, Cohort, cohort
from tests.waiting import PATIENCE, until

NOTICE = 3.0
"""Seconds in which each of the callers is answered once more, also where a machine stalls."""

BODY = {"model": "iris", "inputs": {"features": [[5.1, 3.5, 1.4, 0.2]]}}


async def call_until_refused(server: Cohort, log: Counter[str], *, keep_alive: bool) -> None:
    """Ask again and again; note each outcome; end when the door is closed."""
    limits = httpx.Limits(max_keepalive_connections=1 if keep_alive else 0)
    async with httpx.AsyncClient(
        base_url=server.url, limits=limits, timeout=PATIENCE, verify=server.trust
    ) as client:
        while True:
            try:
                answer = await client.post("/predict", json=BODY)
            except httpx.ConnectError:
                log["door closed"] += 1
                return
            except httpx.TransportError as error:
                log[f"lost: {type(error).__name__}"] += 1
            else:
                log[str(answer.status_code)] += 1


async def stop_without_loss(server: Cohort, count: int, *, keep_alive: bool) -> None:
    """Stop it while `count` callers ask: each request is answered, until the listener closes."""
    log: Counter[str] = Counter()
    async with asyncio.TaskGroup() as callers:
        for _ in range(count):
            callers.create_task(call_until_refused(server, log, keep_alive=keep_alive))
        await until(lambda: log["200"] >= 200)
        server.process.send_signal(signal.SIGTERM)
    status = await asyncio.to_thread(server.process.wait, PATIENCE)
    assert status == 0, server.logged
    assert set(log) == {"200", "door closed"}, log
    assert log["door closed"] == count


@pytest.mark.parametrize("keep_alive", [True, False])
async def test_sigterm_under_load_loses_no_request(tmp_path: Path, keep_alive: bool) -> None:
    """Every connected caller gets an answer; then the listeners close and the process exits 0."""
    with cohort(MODELS, tmp_path, drain_notice_seconds=NOTICE) as server:
        await stop_without_loss(server, 16, keep_alive=keep_alive)


async def test_readiness_goes_first_and_predictions_go_on(tmp_path: Path) -> None:
    """During the notice /health/ready answers 503, /health/live 200, and predictions are served."""
    with cohort(MODELS, tmp_path, drain_notice_seconds=3600) as server:
        server.process.send_signal(signal.SIGTERM)
        refused = await asyncio.to_thread(server.wait_for, "/health/ready", 503)
        assert refused.json()["code"] == "NotReady"
        assert refused.headers["retry-after"]
        assert httpx.get(server.url + "/health/live").status_code == httpx.codes.OK
        answer = httpx.post(server.url + "/predict", json=BODY)
        assert answer.status_code == httpx.codes.OK
        assert answer.headers["connection"] == "close", "callers are asked to move on"


def accepts(server: Cohort) -> bool:
    """Return True if the listener is open."""
    address = httpx.URL(server.url)
    try:
        socket.create_connection((address.host, address.port or 80), timeout=PATIENCE).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("values", [4, 40_000], ids=["small", "read on a thread"])
async def test_a_request_whose_body_is_on_its_way_is_answered(tmp_path: Path, values: int) -> None:
    """It is answered also if the rest arrives after the listeners have closed."""
    models = tmp_path / "models"
    onnx_models.save(onnx_models.variable_length(), models / "text/1/model.onnx")
    body = json.dumps({"inputs": {"input_ids": [[1] * values]}}).encode()
    head = (
        b"POST /models/text/predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body)
    )
    folder = tmp_path / "server"
    folder.mkdir()
    with cohort(models, folder, drain_notice_seconds=0, drain_seconds=600) as server:
        address = httpx.URL(server.url)
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(head + body[:10])
        await writer.drain()
        await asyncio.to_thread(server.wait_for, "/health/live")  # which came after the head
        server.process.send_signal(signal.SIGTERM)
        await until(lambda: not accepts(server))
        writer.write(body[10:])
        await writer.drain()
        status = (await asyncio.wait_for(reader.readline(), PATIENCE)).decode()
        assert status.startswith("HTTP/1.1 200"), status
        writer.close()
        assert await asyncio.to_thread(server.process.wait, PATIENCE) == 0


@pytest.mark.parametrize(
    "sent",
    [
        b"POST /models/iris/predict HTTP/1.1\r\nHo",
        b"POST /models/iris/predict HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
        b"POST /admin/models/iris/load HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
    ],
    ids=["head", "body", "body of another route"],
)
async def test_a_request_that_is_not_whole_does_not_hold_the_stop(
    tmp_path: Path, sent: bytes
) -> None:
    """It is refused once the others had time to send theirs, long before the drain ends."""
    with cohort(MODELS, tmp_path, drain_notice_seconds=0, drain_seconds=3600) as server:
        address = httpx.URL(server.url)
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(sent)
        await writer.drain()
        await asyncio.to_thread(server.wait_for, "/health/live")  # which came after that
        server.process.send_signal(signal.SIGTERM)
        said = await asyncio.wait_for(reader.read(), PATIENCE)
        assert said.startswith(b"HTTP/1.1 503") or b"admin" in sent, said
        assert await asyncio.to_thread(server.process.wait, PATIENCE) == 0
        writer.close()


async def test_a_second_signal_ends_the_process_at_once(tmp_path: Path) -> None:
    """It ends during the notice and the drain, without a traceback."""
    with cohort(MODELS, tmp_path, drain_notice_seconds=3600) as server:
        server.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(server.wait_for, "/health/ready", 503)
        server.process.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(server.process.wait, PATIENCE) == 128 + signal.SIGINT
    assert "stopped by a second signal" in server.logged
    assert "Traceback" not in server.logged


async def test_a_model_that_is_never_loaded_does_not_hold_the_stop(tmp_path: Path) -> None:
    """The process ends although one of its threads still runs."""
    models = tmp_path / "models"
    onnx_models.save(onnx_models.endless(), models / "endless/1/model.onnx")
    with cohort(models, tmp_path, ready=False, drain_notice_seconds=0) as server:
        server.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(server.process.wait, PATIENCE) == 0


HOLDING = """
import ctypes, os, threading, time

def hold():
    while not os.path.exists({path!r}):
        time.sleep(0.01)
    ctypes.PyDLL(None).sleep(3600)

threading.Thread(target=hold, daemon=True).start()
"""


async def test_a_library_that_keeps_the_interpreter_does_not_hold_the_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No Python thread runs after it. The process still ends and logs where it was."""
    held = tmp_path / "held"
    (tmp_path / "sitecustomize.py").write_text(HOLDING.format(path=str(held)))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT / 'app'}")
    with cohort(
        MODELS, tmp_path, program=COMMAND, drain_notice_seconds=NOTICE, drain_seconds=0
    ) as server:
        server.process.send_signal(signal.SIGTERM)
        await until(lambda: '"draining"' in server.logged)
        held.touch()
        assert await asyncio.to_thread(server.process.wait, PATIENCE) == 1
    assert "Timeout" in server.logged
    assert "in hold" in server.logged


async def test_sighup_has_all_files_looked_at(tmp_path: Path) -> None:
    """It works also without polling; without a handler the signal would end the process."""
    models = tmp_path / "models"
    onnx_models.save(onnx_models.mlp(), models / "mlp/1/model.onnx")
    with cohort(models, tmp_path, watch_seconds=0) as server:
        onnx_models.save(onnx_models.mlp(), models / "other/1/model.onnx")

        def is_there() -> bool:
            server.process.send_signal(signal.SIGHUP)  # again, until the copy counts as complete
            return httpx.get(server.url + "/models/other").is_success

        await until(is_there)
        assert server.process.poll() is None


async def test_sighup_ends_nothing_while_models_load(tmp_path: Path) -> None:
    """A certificate renewal may send the signal just after the process was restarted."""
    with cohort(MODELS, tmp_path, ready=False) as server:
        server.process.send_signal(signal.SIGHUP)
        await asyncio.to_thread(server.wait_for, "/health/ready")
