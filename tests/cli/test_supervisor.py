"""The parent process, which does the work of systemd."""

from __future__ import annotations

import signal
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


HANGS_AT_ITS_START = """
import os, signal
import cohort.cli.supervisor as supervisor

supervisor.STARTING_SECONDS = 0.5
supervisor.supervise(0.1, log_format="json")
os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_server_that_hangs_before_it_has_started_is_killed() -> None:
    """It gave no sign of life, so the parent exits with the signal's status."""
    done = subprocess.run(
        [sys.executable, "-c", HANGS_AT_ITS_START],
        cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 128 + signal.SIGKILL
    assert "no sign of life for 0.5 s: killed the server" in done.stderr
