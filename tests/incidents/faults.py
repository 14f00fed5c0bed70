"""Faults of one replica of three."""

from __future__ import annotations

import os
import signal
import ssl
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from threading import Event, Thread

from tests.deploy.balancers import Fleet, saying
from tests.e2e.processes import cohort

Fault = Callable[[Fleet, Path], AbstractContextManager[None]]


@contextmanager
def hung(fleet: Fleet, folder: Path) -> Iterator[None]:
    """It does nothing more, but the kernel still accepts connections for it."""
    process = fleet.replicas[0].process
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


@contextmanager
def dead(fleet: Fleet, folder: Path) -> Iterator[None]:
    """It is killed and not restarted."""
    fleet.end(0, kill=signal.SIGKILL)
    try:
        yield
    finally:
        fleet.start(0)


@contextmanager
def slow(fleet: Fleet, folder: Path) -> Iterator[None]:
    """It has 2 ms of each 20."""
    process, over = fleet.replicas[0].process, Event()

    def hold() -> None:
        while not over.is_set():
            os.kill(process.pid, signal.SIGSTOP)
            over.wait(0.018)
            os.kill(process.pid, signal.SIGCONT)
            over.wait(0.002)

    thread = Thread(target=hold)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def not_ready(fleet: Fleet, folder: Path) -> Iterator[None]:
    """It comes back, and has no models: its folder cannot be read."""
    folder.mkdir(exist_ok=True)
    with dead(fleet, folder), ExitStack() as stack:
        stack.enter_context(
            cohort(
                folder / "none",
                folder,
                ready=False,
                port=fleet.ports[0],
                grpc_port=fleet.grpc_ports[0],
            )
        )
        yield


@contextmanager
def garbage(
    answer: bytes, fleet: Fleet, folder: Path, *, tls: ssl.SSLContext | None = None
) -> Iterator[None]:
    """Another program is on its ports and sends `answer` to all."""

    with dead(fleet, folder), ExitStack() as stack:
        for port in (fleet.ports[0], fleet.grpc_ports[0]):
            stack.enter_context(saying(answer, port, tls=tls))
        yield


FAULTS: dict[str, Fault] = {
    "hung": hung,
    "dead": dead,
    "slow": slow,
    "not ready": not_ready,
    "no answer": partial(garbage, b""),
    "garbage for headers": partial(garbage, b"HTTP/1.1 200 OK\r\n\x00\xff: junk\r\n\r\n{}"),
    "headers without end": partial(garbage, b"HTTP/1.1 200 OK\r\nx: " + b"x" * 2**20),
    "garbage": partial(garbage, b"\x15\x03\x01\x00\x02\x02\x46"),
}
