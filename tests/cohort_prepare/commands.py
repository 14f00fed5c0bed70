"""Functions that run commands that prepare models."""

from __future__ import annotations

import subprocess
from contextlib import chdir
from pathlib import Path

from click.testing import Result

from tests.cli.test_cli import run
from tests.e2e.processes import run_command


def run_in(folder: Path, *arguments: object) -> Result:
    """Run `cohort` with `arguments` in `folder`, in this process."""
    with chdir(folder):
        return run(*map(str, arguments))


def start_in(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the same as a process, which starts its own, as users do: slower by seconds."""
    return run_command(*arguments, cwd=folder)
