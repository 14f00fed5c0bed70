"""Start servers by forking a process that has imported everything: it saves most of a start.

The same is done for the processes that the commands which prepare models start (`fork_children`).

A server imports for more than a second of CPU, and tests start hundreds of servers. One process of
`tests.e2e.fork_server` imports once and forks each of them. A forked server runs the command with
its own arguments, environment, working folder and standard streams, and ends as a started one does.
Only the imports have already happened. One that is the parent of several workers forks them, too
(`tests.e2e.forked_workers`).
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from types import SimpleNamespace
from typing import IO, Any
from unittest import mock

from tests.e2e.fork_server import COHORT, IMPORTED

_ROOT = Path(__file__).parents[2]

FORKS = hasattr(os, "pidfd_open")
"""Whether processes can be forked: on Linux."""


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
        self._looking = threading.Lock()

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
        if timeout is None:
            with self._looking:  # the message of the end comes once
                return self._receive(None)
        end = time.monotonic() + timeout
        if not self._looking.acquire(timeout=timeout):
            return self.returncode
        try:
            return self._receive(max(0.0, end - time.monotonic()))
        finally:
            self._looking.release()

    def _receive(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            self._ended.settimeout(timeout)
            try:
                message = self._ended.recv(64)
            except (BlockingIOError, TimeoutError):
                return None
            self._ended.close()
            if not message:  # the fork server has ended: nobody else ends this process
                self.returncode = -signal.SIGKILL
                with suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)
            self.returncode = _number(message, b"ended")
        return self.returncode


def fork(
    arguments: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    stdout: int,
    stderr: int,
    module: str = COHORT,
    new_session: bool = False,
) -> ForkedProcess:
    """Run `cohort` with `arguments` in a forked process; `stdout` and `stderr` are descriptors.

    module: What to run instead, one of `IMPORTED`.
    new_session: Whether the process leads a session of its own.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, TemporaryFile() as file:
        request = {
            "module": module,
            "arguments": [*arguments],
            "cwd": str(cwd),
            "env": {**env},
            "new_session": new_session,
        }
        file.write(json.dumps(request).encode())
        file.seek(0)
        descriptors = [stdout, stderr, theirs.fileno(), file.fileno()]
        seed = env.get("PYTHONHASHSEED", "random")
        try:
            socket.send_fds(_fork_server(seed), [b"fork"], descriptors)
        except ConnectionError:  # it has ended: another takes its place
            _fork_server.cache_clear()
            socket.send_fds(_fork_server(seed), [b"fork"], descriptors)
    try:
        return ForkedProcess(_number(ours.recv(64), b"started"), ours)
    except AssertionError:
        ours.close()
        raise


def _number(message: bytes, event: bytes) -> int:
    """Return what a message says of an event: a process that never started has no id."""
    told, _, number = message.partition(b" ")
    assert told == event, message or "the fork server has ended"
    return int(number)


@contextmanager
def fork_children() -> Iterator[None]:
    """Fork the processes that prepare models, as long as this lasts.

    One imports for up to two seconds, and a command has several do its work. They are forked if
    they are started with this Python by `app.prepare.processes`; other processes start as ever.
    A forked one that has done its work ends without freeing its modules.
    """

    def popen(command: Sequence[str], **how: Any) -> ForkedProcess | subprocess.Popen[bytes]:
        match [*command]:
            case [sys.executable, "-P", "-m", str(module), *arguments] if module in IMPORTED:
                printed: IO[bytes] = how["stdout"]
                return fork(
                    arguments,
                    cwd=how["cwd"] or Path.cwd(),
                    env=how["env"],
                    stdout=printed.fileno(),
                    stderr=printed.fileno(),
                    module=module,
                    new_session=how["start_new_session"],
                )
        return subprocess.Popen(command, **how)

    stand_in = SimpleNamespace(**{**vars(subprocess), "Popen": popen})
    with mock.patch("app.prepare.processes.subprocess", stand_in):
        yield


@cache
def _fork_server(hash_seed: str) -> socket.socket:
    """Start a fork server of this process, once, and return the socket for its messages.

    hash_seed: The PYTHONHASHSEED that it and all its processes have.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        server = subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.e2e.fork_server", str(theirs.fileno())],
            cwd=_ROOT,
            env={
                **os.environ,
                "OPENBLAS_NUM_THREADS": "1",  # a thread would not survive the fork
                "PYTHONHASHSEED": hash_seed,
                "PYTHONPATH": str(_ROOT),
            },
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )

    def stop() -> None:
        ours.close()  # which the server sees however this process ends
        server.wait()

    atexit.register(stop)
    return ours
