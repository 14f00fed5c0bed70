"""A process that starts, or cannot."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx

from tests.e2e.processes import MODELS, ROOT, cohort


def test_a_port_in_use_is_told_in_one_line(tmp_path: Path) -> None:
    """Which address, and what to do about it; exit 1, no traceback."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = subprocess.run(
            [sys.executable, "-m", "app", "serve", "--port", str(port), "--grpc-port", "0"],
            cwd=ROOT,
            env={**os.environ, "COHORT_MODELS": str(MODELS), "COHORT_LOG_FORMAT": "json"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert ended.returncode == 1
    assert f"127.0.0.1:{port}" in ended.stderr
    assert "COHORT_PORT" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_ctrl_c_stops_at_once_and_exits_0(tmp_path: Path) -> None:
    """Without the notice that a balancer needs."""
    with cohort(MODELS, tmp_path, drain_notice_seconds=60) as server:
        assert httpx.get(server.url + "/health/live").is_success
        assert server.stop(kill=signal.SIGINT, timeout=30) == 0, server.logged


def test_the_start_up_table_shows_models_and_why_they_fell_back(tmp_path: Path) -> None:
    """For people: each version with its state, tensors and provider; reasons below, once each."""
    with cohort(MODELS, tmp_path, log_format="console") as server:
        table = server.logged
    for word in ("iris", "digits", "READY", "features FP32", "Serving on http://127.0.0.1:"):
        assert word in table
    if "instead of cuda" in table:
        assert table.count("instead of cuda") == 1
