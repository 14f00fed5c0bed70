"""Start servers by forking a process that has imported everything: it saves most of a start.

The same is done for the processes that the commands which prepare models start (`fork_children`).

A server imports for more than a second of CPU, and tests start hundreds of servers. One process of
`tests.e2e.fork_server` imports once and forks each of them. All processes of pytest-xdist share it.
A forked server runs the command with its own arguments, environment, working folder and standard
streams, and ends as a started one does. Only the imports have already happened. One that is the
parent of several workers forks them, too (`tests.e2e.forked_workers`). Where a test starts a
program by its name, `tests.e2e.fork_client` is that program.
"""

from __future__ import annotations

import atexit
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
from tempfile import mkdtemp
from types import SimpleNamespace
from typing import IO, Any
from unittest import mock

from cohort.system import jobs
from tests.e2e import fork_client
from tests.e2e.fork_client import COHORT, SHARED, number_of
from tests.e2e.fork_server import IMPORTED

_ROOT = Path(__file__).parents[2]

FORKS = hasattr(os, "pidfd_open")
"""True if processes can be forked: on Linux."""


class ForkedProcess:
    """A process that the fork server forked, with the methods of `subprocess.Popen` that tests use.

    pid: Its process id.
    stdin, stdout, stderr: Its streams, where they are pipes to this process.
    returncode: Its exit status, or minus the signal that ended it; None until `poll` or `wait` has
        seen its end.
    """

    def __init__(self, pid: int, ended: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdin: IO[bytes] | None = None
        self.stdout: IO[bytes] | None = None
        self.stderr: IO[bytes] | None = None
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
                message = fork_client.receive(self._ended)
            except (BlockingIOError, TimeoutError):
                return None
            self._ended.close()
            if not message:  # the fork server has ended, so this must end the process
                self.returncode = -signal.SIGKILL
                with suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)
            self.returncode = number_of(message, b"ended")
        return self.returncode


def fork(
    arguments: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    stdout: int,
    stderr: int,
    stdin: int | None = None,
    module: str = COHORT,
    new_session: bool = False,
) -> ForkedProcess:
    """Run `cohort` with `arguments` in a forked process; streams are descriptors.

    stdin: By default it is empty.
    module: Run this module instead, one of `IMPORTED`.
    new_session: True if the process leads a new session.
    """
    with Path(os.devnull).open("rb") as nothing:
        return ForkedProcess(
            *fork_client.ask(
                str(fork_servers()),
                arguments,
                cwd=str(cwd),
                env=env,
                streams=[nothing.fileno() if stdin is None else stdin, stdout, stderr],
                module=module,
                new_session=new_session,
            )
        )


def stand_in() -> tuple[str, ...]:
    """Return what to start in place of `cohort`, before its arguments: a program that forks it."""
    return (sys.executable, "-IS", fork_client.__file__, str(fork_servers()))


@contextmanager
def fork_children() -> Iterator[None]:
    """Fork the processes that prepare models, as long as this lasts.

    One imports for up to two seconds, and a command has several do its work. They are forked if
    they are started with this Python for a job of `IMPORTED`; other processes start as ever.
    A forked one that has done its work ends without freeing its modules.
    """
    with mock.patch("cohort.system.jobs.subprocess", _FORKING):
        yield


def fork_children_of_this(shared: str) -> None:
    """Do so for the rest of this process, with the fork servers that it was forked by."""
    fork_servers.cache_clear()
    with mock.patch.dict(os.environ, {SHARED: shared}):
        fork_servers()
    vars(jobs)["subprocess"] = _FORKING


def _popen(command: Sequence[str], **how: Any) -> ForkedProcess | subprocess.Popen[bytes]:
    match [*command]:
        case [sys.executable, "-P", "-c", _, str(name)] if (
            module := name.partition(":")[0]
        ) in IMPORTED:
            pipes = [os.pipe() for _ in range(3)]
            theirs = [pipes[0][0], pipes[1][1], pipes[2][1]]
            process = fork(
                [name],
                cwd=how["cwd"] or Path.cwd(),
                env=how["env"],
                stdin=theirs[0],
                stdout=theirs[1],
                stderr=theirs[2],
                module=module,
                new_session=how["start_new_session"],
            )
            for descriptor in theirs:
                os.close(descriptor)
            process.stdin = os.fdopen(pipes[0][1], "wb", buffering=0)
            process.stdout = os.fdopen(pipes[1][0], "rb", buffering=0)
            process.stderr = os.fdopen(pipes[2][0], "rb", buffering=0)
            return process
    return subprocess.Popen(command, **how)


_FORKING = SimpleNamespace(**{**vars(subprocess), "Popen": _popen})


@cache
def fork_servers() -> Path:
    """Return the folder with the sockets of fork servers: shared ones, or new ones."""
    root, _, folder = os.environ.get(SHARED, "").partition(os.pathsep)
    return Path(folder) if root == str(_ROOT) else start_fork_servers()


def share_fork_servers(folder: Path) -> dict[str, str]:
    """Return the environment with which other processes use those in `folder`.

    Processes of another working copy do not: their servers are to have their own code.
    """
    return {SHARED: f"{_ROOT}{os.pathsep}{folder}"}


def start_fork_servers() -> Path:
    """Start fork servers that end with this process; return the folder with their sockets.

    There is one for each PYTHONHASHSEED that processes are asked for with, which is its name.
    """
    folder = Path(mkdtemp(prefix="fork-servers-"))
    lifetime, ours = os.pipe()
    servers = [
        _start_one(folder / seed, lifetime)
        for seed in {"random", "0", os.environ.get("PYTHONHASHSEED", "random")}
    ]
    os.close(lifetime)

    def stop() -> None:
        os.close(ours)  # which they see however this process ends
        for server in servers:
            server.wait()

    atexit.register(stop)
    return folder


def _start_one(address: Path, lifetime: int) -> subprocess.Popen[bytes]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(address))
        listener.listen()
        passed = [listener.fileno(), lifetime]
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.e2e.fork_server", *map(str, passed)],
            cwd=_ROOT,
            env={
                **os.environ,
                **share_fork_servers(address.parent),
                # Threads of libraries would not survive the fork.
                "OPENBLAS_NUM_THREADS": "1",
                "JE_ARROW_MALLOC_CONF": "background_thread:false",
                "PYTHONHASHSEED": address.name,
                "PYTHONPATH": str(_ROOT),
            },
            stdin=subprocess.DEVNULL,
            pass_fds=passed,
        )
