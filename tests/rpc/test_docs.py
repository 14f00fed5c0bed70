"""The page about gRPC: its commands are run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.processes import ROOT, Cohort

PAGE = Path(ROOT, "docs/reference/grpc.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize(
    ("command", "answer"),
    list(zip(COMMANDS, ["[0] 1", "int64_contents: 0", "SERVING"], strict=True)),
)
def test_commands_of_the_page_work(server: Cohort, command: str, answer: str) -> None:
    """Each block, copied out and run by itself, prints what it should."""
    assert "127.0.0.1:8001" in command
    code = command.replace("127.0.0.1:8001", server.grpc)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer in ran.stdout
