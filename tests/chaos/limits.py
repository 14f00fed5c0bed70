"""Limits that a process is given while it runs."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.e2e.processes import Cohort


@contextmanager
def limited(server: Cohort, kind: str, most: int) -> Iterator[None]:
    """Let the process have no more than `most` of a kind that prlimit names."""
    prlimit = ["prlimit", f"--pid={server.process.pid}"]
    shown = [*prlimit, f"--{kind}", "--noheadings", "-o", "SOFT"]
    before = subprocess.run(shown, check=True, capture_output=True, text=True).stdout.strip()
    subprocess.run([*prlimit, f"--{kind}={most}:"], check=True)
    try:
        yield
    finally:
        subprocess.run([*prlimit, f"--{kind}={before}:"], check=True)
