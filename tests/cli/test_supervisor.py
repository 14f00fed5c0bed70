"""The parent that kills a server whose event loop stands still: real processes, real signals."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from time import monotonic

from tests.e2e.processes import Cohort, cohort
from tests.waiting import PATIENCE, wait_until

WATCHDOG = 10.0
"""Seconds, of servers that are to be killed; one that starts gives a sign of life before."""

LIVES = 8.0
"""Seconds in which a server that goes on gives a sign of life, also on a machine that stalls."""


def child_of(server: Cohort) -> int:
    """The process that serves."""
    return only_child(server.process.pid)


def only_child(pid: int) -> int:
    """The process that another one has started."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text())


def test_a_server_that_hangs_is_killed_and_one_that_stops_is_not(tmp_path: Path) -> None:
    """A stopped one is ended by its parent, which says so and exits as it did; SIGTERM and SIGHUP
    go through, and a paused container, parent and all, is none of these.
    """
    (tmp_path / "models").mkdir()
    with cohort(tmp_path / "models", tmp_path, allow_empty=1, watchdog_seconds=60) as server:
        child = child_of(server)
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "looking at all files" in server.logged)
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for process in (server.process.pid, child):
                os.kill(process, number)
        server.wait_for("/health/ready")
        assert server.stop() == 0
    with cohort(tmp_path / "models", tmp_path, allow_empty=1, watchdog_seconds=WATCHDOG) as server:
        child = child_of(server)
        os.kill(child, signal.SIGSTOP)
        assert server.process.wait(PATIENCE) == 128 + signal.SIGKILL
        assert not Path(f"/proc/{child}").exists()
        assert json.loads(server.logged.splitlines()[-1])["event"] == (
            "no sign of life for 10 s: killed the server"
        )


def test_a_server_does_not_outlive_its_parent(tmp_path: Path) -> None:
    """Nobody would watch it any more, and its port would stay taken."""
    (tmp_path / "models").mkdir()
    with cohort(tmp_path / "models", tmp_path, allow_empty=1, watchdog_seconds=60) as server:
        child = child_of(server)
        server.stop(kill=signal.SIGKILL)
        wait_until(lambda: not Path(f"/proc/{child}").exists())


def test_a_server_that_hangs_is_killed_though_nobody_reads_its_log(tmp_path: Path) -> None:
    """Where standard error is a pipe that is full, the line is lost, and nothing else."""
    (tmp_path / "models").mkdir()
    reading, writing = os.pipe()
    with (
        os.fdopen(reading, "rb"),
        cohort(
            tmp_path / "models", tmp_path, allow_empty=1, watchdog_seconds=WATCHDOG, stderr=writing
        ) as server,
    ):
        os.kill(child_of(server), signal.SIGSTOP)
        os.set_blocking(writing, False)
        with suppress(BlockingIOError):
            while os.write(writing, b"x" * 4096):
                pass
        os.set_blocking(writing, True)  # for the server, too
        os.close(writing)
        assert server.process.wait(PATIENCE) == 128 + signal.SIGKILL


def test_a_signal_to_the_process_group_is_one_signal(tmp_path: Path) -> None:
    """It reaches the server by its parent alone, and is not taken for a second one."""
    (tmp_path / "models").mkdir()
    with cohort(
        tmp_path / "models", tmp_path, allow_empty=1, watchdog_seconds=60, under=["setsid"]
    ) as server:
        os.killpg(server.process.pid, signal.SIGTERM)
        assert server.process.wait(PATIENCE) == 0
        assert "second signal" not in server.logged


def test_ctrl_z_stops_the_server_until_it_is_told_to_go_on(tmp_path: Path) -> None:
    """A terminal sends the signal to the parent's group alone, and the server served on."""
    (tmp_path / "models").mkdir()
    # As a job of a shell, which could have it go on.
    shell = ["bash", "-c", 'set -m; "$@" & wait -f $!', "bash"]
    with cohort(
        tmp_path / "models", tmp_path, allow_empty=1, watchdog_seconds=LIVES, under=shell
    ) as job:
        parent = only_child(job.process.pid)
        child = only_child(parent)
        os.killpg(parent, signal.SIGTSTP)
        wait_until(lambda: state_of(parent) == state_of(child) == "T")
        stopped = monotonic()
        wait_until(lambda: monotonic() > stopped + LIVES + 0.1)
        os.killpg(parent, signal.SIGCONT)
        job.wait_for("/health/ready")
        os.killpg(parent, signal.SIGTERM)
        assert job.process.wait(PATIENCE) == 0
        assert "no sign of life" not in job.logged


def state_of(pid: int) -> str:
    """ "T": the process is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
