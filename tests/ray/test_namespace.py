"""The namespace of `make ray` leaves no processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.e2e.processes import ROOT
from tests.waiting import PATIENCE

CALLER = """
import subprocess
from tests.ray.namespace import in_namespace
subprocess.run(in_namespace("bash -c 'trap : INT TERM; sleep 900 & echo up; wait; wait'"))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has namespaces of processes")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_processes_end_with_a_caller_that_is_stopped(number: signal.Signals) -> None:
    """Their pipe closes once the last of them has ended."""
    command = [sys.executable, "-c", CALLER]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as caller:
        assert caller.stdout is not None
        assert caller.stdout.readline() == b"up\n"
        caller.send_signal(number)
        caller.communicate(timeout=PATIENCE)
