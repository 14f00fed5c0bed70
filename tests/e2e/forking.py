"""Start servers by forking a process that has imported everything: it saves most of a start.

A server imports for more than a second of CPU, and tests start hundreds of servers. One process of
`tests.e2e.fork_server` imports once and forks each of them. A forked server runs the command with
its own arguments, environment, working folder and standard streams, and ends as a started one does.
Only the imports have already happened, and `sys.orig_argv` is the forking process's.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

_ROOT = Path(__file__).parents[2]


class ForkedProcess:
    """A process that the fork server forked, with the methods of `subprocess.Popen` that tests use.

    pid: Its process id.
    returncode: Its exit status, or minus the signal that ended it; None until `poll` or `wait` has
        seen its end.
    """

    def __init__(self, pid: int, ended: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = ended

    def poll(self) -> int | None:
        """Return the exit status, or None while the process runs."""
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit status.

        Raises subprocess.TimeoutExpired after `timeout` seconds.
        """
        status = self._look(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(f"forked server {self.pid}", timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal; do nothing if the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            self._ended.settimeout(timeout)
            try:
                message = self._ended.recv(64)
            except (BlockingIOError, TimeoutError):
                return None
            assert message, "the fork server has ended"
            self.returncode = int(message)
            self._ended.close()
        return self.returncode


def fork(
    arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str], stdout: int, stderr: int
) -> ForkedProcess:
    """Run `cohort` with `arguments` in a forked process; `stdout` and `stderr` are descriptors."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        request = {"arguments": [*arguments], "cwd": str(cwd), "env": {**env}}
        body = json.dumps(request).encode()
        socket.send_fds(_fork_server(), [body], [stdout, stderr, theirs.fileno()])
    message = ours.recv(64)
    assert message, "the fork server has ended"
    return ForkedProcess(int(message), ours)


@cache
def _fork_server() -> socket.socket:
    """Start the fork server of this process, once, and return the socket for its messages."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.fork_server", str(theirs.fileno())],
            cwd=_ROOT,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # a thread would not survive the fork
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )

    def stop() -> None:
        ours.close()  # which the server sees however this process ends
        server.wait()

    atexit.register(stop)
    return ours
