"""Run the commands of an alert's entry in docs/operations/runbook.md, and nothing else."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys

from tests.e2e.processes import ROOT

PAGE = (ROOT / "docs" / "operations" / "runbook.md").read_text()
_PARTS = re.split(r"^## (\w+)\n", PAGE, flags=re.MULTILINE)[1:]
ENTRIES = dict(zip(_PARTS[::2], _PARTS[1::2], strict=True))


def quoted(alert: str, text: str) -> str:
    """Give `text`, which has to stand in the entry, word for word, as code."""
    assert f"`{text}`" in ENTRIES[alert], f"{alert} has no `{text}` in docs/operations/runbook.md"
    return text


def run(alert: str, command: str, **variables: object) -> str:
    """Run a command of the entry in a shell with `variables`; return its output."""
    cohort = f'cohort() {{ {shlex.quote(sys.executable)} -m cohort "$@"; }}'
    done = subprocess.run(
        ["bash", "-c", f"{cohort}\n{quoted(alert, command)}"],
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("COHORT_")},
            "PYTHONPATH": str(ROOT / "app"),
            **{name: str(value) for name, value in variables.items()},
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return done.stdout or done.stderr
