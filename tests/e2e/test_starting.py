"""A process that starts, or cannot."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import httpx
import pytest

from tests.e2e.processes import MODELS, ROOT, cohort
from tests.waiting import PATIENCE, wait_until


def test_a_port_in_use_is_told_in_one_line(tmp_path: Path) -> None:
    """The line has the address and what to do; the exit status is 1, without a traceback."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = subprocess.run(
            [sys.executable, "-m", "cohort", "serve", "--port", str(port), "--grpc-port", "0"],
            cwd=ROOT,
            env={**os.environ, "COHORT_MODELS": str(MODELS), "COHORT_LOG_FORMAT": "json"},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    assert ended.returncode == 1
    assert f"127.0.0.1:{port}" in ended.stderr
    assert "COHORT_PORT" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_answers_of_another_server_are_not_taken_for_its_own(tmp_path: Path) -> None:
    """A test whose port is taken fails by that, instead of going on with the other server."""
    folder = tmp_path / "other"
    folder.mkdir()
    with cohort(folder, folder, allow_empty=1) as other:
        port = other.url.rpartition(":")[2]
        with (
            pytest.raises(AssertionError, match="COHORT_PORT"),
            cohort(tmp_path, tmp_path, port=port, allow_empty=1),
        ):
            pytest.fail("the test goes on")


def test_ctrl_c_stops_at_once_and_exits_0(tmp_path: Path) -> None:
    """The notice that a balancer needs is skipped."""
    with cohort(MODELS, tmp_path, drain_notice_seconds=3600) as server:
        assert httpx.get(server.url + "/health/live").is_success
        assert server.stop(kill=signal.SIGINT, timeout=PATIENCE) == 0, server.logged


def takes(pid: int, number: signal.Signals) -> bool:
    """Return True if a process has a handler for a signal."""
    (mask,) = re.findall(r"SigCgt:\s(\w+)", Path(f"/proc/{pid}/status").read_text())
    return bool(int(mask, 16) >> (number - 1) & 1)


def has(pid: int, library: str) -> bool:
    """Return True if a process has loaded a library."""
    return library in Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.parametrize("watchdog", [0, 10])
@pytest.mark.parametrize("library", ["", "onnxruntime_pybind11"])
def test_a_start_that_is_stopped_exits_0(tmp_path: Path, library: str, watchdog: int) -> None:
    """It takes a second to import what serves, and the signal ended that by its default: 143."""
    process = subprocess.Popen(
        [sys.executable, "-m", "cohort", "serve", "--port", "0", "--grpc-port", "0"],
        cwd=ROOT,
        env={
            **os.environ,
            "COHORT_MODELS": str(MODELS),
            "COHORT_WATCHDOG_SECONDS": str(watchdog),
            "COHORT_STATE": str(tmp_path / "state"),
            "COHORT_CACHE": str(tmp_path / "cache"),
        },
        stderr=subprocess.PIPE,
        text=True,
    )
    pid = process.pid
    wait_until(lambda: takes(pid, signal.SIGTERM))
    if library:
        children = Path(f"/proc/{pid}/task/{pid}/children")
        server = int(wait_until(children.read_text)) if watchdog else pid
        wait_until(lambda: has(server, library))
    process.send_signal(signal.SIGTERM)
    _, logged = process.communicate(timeout=PATIENCE)
    assert (process.returncode, "Traceback" in logged) == (0, False), logged


BLOCKED = """
import pathlib, time
pathlib.Path({path!r}).touch()
time.sleep(3600)
"""


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("script", [False, True])
def test_a_stop_before_anything_is_imported_exits_0(
    tmp_path: Path, script: bool, first: bool
) -> None:
    """Process 1 exits as well, though the kernel drops signals that it has no handler for."""
    if first and os.geteuid():
        pytest.skip("only root has namespaces of processes")
    begun = tmp_path / "begun"
    (tmp_path / "rich_click.py").write_text(BLOCKED.format(path=str(begun)))  # it is imported first
    module, _, function = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "scripts"
    ]["cohort"].partition(":")
    run = ["-c", f"from {module} import {function}; {function}()"] if script else ["-m", "cohort"]
    under = ["unshare", "--pid", "--fork", "--kill-child"] if first else []
    with subprocess.Popen(
        [*under, sys.executable, *run, "serve"],
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT / 'app'}"},
        stderr=subprocess.PIPE,
    ) as process:
        wait_until(begun.exists)
        pid = process.pid
        inside = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        os.kill(int(inside) if first else pid, signal.SIGHUP)
        os.kill(int(inside) if first else pid, signal.SIGTERM)
        _, said = process.communicate(timeout=PATIENCE)
    assert (process.returncode, said) == (0, b"")


def test_the_start_up_table_shows_models_and_why_they_fell_back(tmp_path: Path) -> None:
    """It shows each version with its state, tensors and provider, and each reason once."""
    with cohort(MODELS, tmp_path, log_format="console") as server:
        wait_until(lambda: "Serving on" in server.logged)  # which comes last, from a thread
        table = server.logged
    for word in ("iris", "digits", "READY", "features FP32", "Serving on http://127.0.0.1:"):
        assert word in table
    if "instead of cuda" in table:
        assert table.count("instead of cuda") == 1
