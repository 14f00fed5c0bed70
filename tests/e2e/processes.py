"""Start the real server as a separate process, and stop it again."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom
from tempfile import TemporaryFile
from urllib.parse import urlsplit

import httpx

from tests.e2e.forking import FORKS, ForkedProcess, fork, stand_in
from tests.waiting import PATIENCE, wait_until

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "models"

COMMAND = (sys.executable, "-m", "cohort")
"""The real command, which imports what it needs."""

EPHEMERAL = 32_768
"""Linux gives connections ports from here on; other tests open thousands of them."""

SHARES = 8
"""Processes of pytest-xdist that draw ports from separate shares."""

STARTING = 300.0
"""Seconds that a server may take to start, on a machine that does much else."""


@dataclass
class Cohort:
    """A started server. `log` is the file its standard error goes to."""

    process: subprocess.Popen[bytes] | ForkedProcess
    url: str
    log: Path
    grpc: str = ""  # where it was asked for gRPC: host and port
    trust: ssl.SSLContext | bool = True  # the CA of its certificate, if it uses TLS
    _answered: bool = False

    @property
    def logged(self) -> str:
        return self.log.read_text()

    def get(self, path: str) -> httpx.Response:
        """Request `path` over a new connection."""
        return httpx.get(self.url + path, verify=self.trust, timeout=PATIENCE)

    def stop(self, *, kill: int = signal.SIGTERM, timeout: float = PATIENCE) -> int:
        """Send the signal, wait, and give the exit status."""
        self.process.send_signal(kill)
        return self.process.wait(timeout)

    def wait_for(self, path: str, status: int = 200) -> httpx.Response:
        """Ask for `path` until it answers with `status`."""
        last: object = None

        def wanted() -> httpx.Response | None:
            nonlocal last
            if self.process.poll() is not None:
                raise AssertionError(
                    f"the server ended with {self.process.returncode}:\n{self.logged}"
                )
            try:
                last = response = self.get(path)
            except httpx.TransportError as error:
                last = error
                return None
            return response if response.status_code == status and self._answers() else None

        try:
            return wait_until(wanted, seconds=STARTING)
        except TimeoutError:
            text = last.text if isinstance(last, httpx.Response) else repr(last)
            raise AssertionError(
                f"{path} never gave {status}, last {text}; log:\n{self.logged}"
            ) from None

    def _answers(self) -> bool:
        """Return True if an answer from the port is this server's; seen once, it stays so.

        While this one starts, or fails since the port is taken, another server may answer.
        """
        self._answered = self._answered or listens(self.process.pid, urlsplit(self.url).port or 0)
        return self._answered


def listens(pid: int, port: int) -> bool:
    """Return True if a process or one below it listens on a TCP port; always True outside Linux."""
    if not FORKS:
        return True
    lines = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()
    ]
    at_port = {
        f"socket:[{one[9]}]" for one in lines if one[3] == "0A" and one[1].endswith(f":{port:04X}")
    }
    return any(not at_port.isdisjoint(_opened(one)) for one in _family(pid))


def _family(pid: int) -> Iterator[int]:
    yield pid
    with suppress(OSError):  # it has ended
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                yield from _family(int(child))


def _opened(pid: int) -> Iterator[str]:
    with suppress(OSError):
        for one in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                yield str(one.readlink())


@contextmanager
def cohort(
    models: Path | str,
    folder: Path,
    *,
    ready: bool = True,
    stdout: int | None = None,
    stderr: int | None = None,
    under: Sequence[str] = (),
    program: Sequence[str] = (),
    cwd: Path = ROOT,
    trust: ssl.SSLContext | None = None,
    **settings: object,
) -> Iterator[Cohort]:
    """Serve `models`, a folder or an address, on a free port, unless one is set.

    Settings are COHORT_* names in lower case.

    `folder` holds the state, the cache, and the log, unless that goes to the descriptor `stderr`.
    The server is forked from a process that has imported everything (`tests.e2e.forking`). If
    `program` names a command, that command runs in `cwd` instead. `under` is a command that runs
    the server in the same process, such as prlimit. `trust` has the CA of the server's certificate.
    Models are opened without an inspection in a second process, which takes 0.7 s and as long again
    as the models. Operators have `inspection_seconds=60`.
    """
    port = int(str(settings.pop("port", 0))) or free_port()
    environment = {
        **without_settings(),
        "COHORT_MODELS": str(models),
        "COHORT_PORT": str(port),
        "COHORT_GRPC_PORT": "0",
        "COHORT_STATE": str(folder / "state"),
        "COHORT_CACHE": str(folder / "cache"),
        "COHORT_INSPECTION_SECONDS": "0",
        "COHORT_WATCH_SECONDS": "0.2",
        "COHORT_DRAIN_NOTICE_SECONDS": "0",
        "COHORT_LOG_FORMAT": "json",
        **{f"COHORT_{name.upper()}": str(value) for name, value in settings.items()},
    }
    log = folder / f"log-{port}.txt"
    with log.open("wb") as file:
        process = _start(
            ["serve"],
            program,
            under,
            cwd=cwd,
            env=environment,
            stdout=stdout,
            stderr=file.fileno() if stderr is None else stderr,
        )
    started = Cohort(
        process,
        f"{'http' if trust is None else 'https'}://127.0.0.1:{port}",
        log,
        f"127.0.0.1:{environment['COHORT_GRPC_PORT']}",
        trust or True,
    )
    try:
        started.wait_for("/health/ready" if ready else "/health/live")
        yield started
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def run_command(
    *arguments: object, cwd: Path = ROOT, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `cohort` with `arguments` to its end, in a separate process.

    It is forked from one that has imported what a server needs. `env` is added to the environment
    of the tests without its COHORT_* settings.
    """
    with TemporaryFile("w+") as stdout, TemporaryFile("w+") as stderr:
        process = _start(
            [*map(str, arguments)],
            cwd=cwd,
            env={**without_settings(), **(env or {})},
            stdout=stdout.fileno(),
            stderr=stderr.fileno(),
        )
        try:
            status = process.wait(STARTING)
        finally:
            process.kill()
        stdout.seek(0)
        stderr.seek(0)
        command = [*COMMAND, *map(str, arguments)]
        return subprocess.CompletedProcess(command, status, stdout.read(), stderr.read())


def quick_command() -> Sequence[str]:
    """Return the `cohort` command for tests that do not test its imports: a forked process."""
    return stand_in() if FORKS else COMMAND


def write_quick_command(folder: Path) -> None:
    """Put that into a folder for a PATH, as the program `cohort`."""
    program = folder / "cohort"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(quick_command())} "$@"\n')
    program.chmod(0o755)


def without_settings() -> dict[str, str]:
    """Return the environment without any COHORT_* variable."""
    return {name: value for name, value in os.environ.items() if not name.startswith("COHORT_")}


def _start(
    arguments: Sequence[str],
    command: Sequence[str] = (),
    under: Sequence[str] = (),
    *,
    cwd: Path,
    env: Mapping[str, str],
    stdout: int | None,
    stderr: int,
) -> subprocess.Popen[bytes] | ForkedProcess:
    if FORKS and not command and not under:
        inherited = 1 if stdout is None else stdout
        return fork(arguments, cwd=cwd, env=env, stdout=inherited, stderr=stderr)
    return subprocess.Popen(
        [*under, *(command or COMMAND), *arguments],
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
    )


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask a program to end, and see to it."""
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def free_port() -> int:
    """Return a port without a listener, which no connection gets until a server binds it.

    No other process of pytest-xdist draws it, and none is given twice: the server that it is for
    binds it a moment later.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    while True:
        port = SystemRandom().randrange(10_000 + worker % SHARES, EPHEMERAL, SHARES)
        if port in _given:
            continue
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            _given.add(port)
            return port


_given: set[int] = set()
