"""The parent that stands where systemd would."""

from __future__ import annotations

import subprocess
import sys

from tests.e2e.processes import ROOT
from tests.waiting import PATIENCE

STOPPED_WHILE_FORKING = """
import os, signal, time
from cohort.cli.supervisor import supervise

parent, fork = os.getpid(), os.fork

def stopped_fork():
    os.kill(parent, signal.SIGTERM)
    return fork()

os.fork = stopped_fork
signal.signal(signal.SIGTERM, lambda *_: os._exit(1 if os.getpid() == parent else 42))
supervise(10, log_format="json")
time.sleep(3600)
"""


def test_a_stop_while_the_server_is_forked_reaches_it() -> None:
    """It waits for the new process: that would forget a signal of its first moments."""
    command = [sys.executable, "-c", STOPPED_WHILE_FORKING]
    assert subprocess.run(command, cwd=ROOT, timeout=PATIENCE, check=False).returncode == 42
