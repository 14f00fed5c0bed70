"""The server sends only answers: no telemetry, no update checks, no name lookups."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.processes import ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has namespaces")


def sent_by(what: str) -> dict[str, int]:
    """Run `tests.attacks.alone`, and give what left its namespace."""
    program = [sys.executable, "-m", "tests.attacks.alone", what]
    ended = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, int] = json.loads(ended.stdout)
    return found


def test_a_connection_and_a_name_are_counted() -> None:
    """Otherwise the test below would say nothing."""
    assert sent_by("talk")["IpOutNoRoutes"] >= 2


def test_a_server_sends_nothing_of_its_own(tmp_path: Path) -> None:
    """A server without requests sends no packet while it starts, loads, is scraped and drains."""
    assert set(sent_by(str(tmp_path)).values()) == {0}
