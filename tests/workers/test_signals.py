"""Signals that reach the parent at an unlucky moment."""

from __future__ import annotations

import subprocess
import sys

from tests.waiting import PATIENCE

STOPPED_WHILE_IT_STARTS_A_WORKER = """
import os, signal, socket
from cohort.workers import parent
from cohort.workers.passing import Kind

class Unlucky(parent.WorkerProcess):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        print(self.pid, flush=True)
        os.kill(os.getpid(), signal.SIGTERM)

parent.WorkerProcess = Unlucky
listeners = {kind: [socket.create_server(("127.0.0.1", 0))] for kind in Kind}
options = parent.WorkerOptions(("sleep", "3600"), 1)
raise SystemExit(parent.Parent(listeners, options).run())
"""


def test_a_stop_reaches_a_worker_that_is_just_being_started() -> None:
    """The parent passes the signal on, although its handler ran before a list held the worker."""
    command = [sys.executable, "-c", STOPPED_WHILE_IT_STARTS_A_WORKER]
    ended = subprocess.run(command, stdout=subprocess.PIPE, timeout=PATIENCE, check=False)
    assert ended.returncode == 0
    assert ended.stdout.strip().isdigit()
