"""Messages to systemd, from a real process to a socket in its place."""

from __future__ import annotations

import os
import queue
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cohort.workers.systemd import Systemd
from tests.e2e.processes import COMMAND, cohort
from tests.waiting import PATIENCE

WATCHDOG = 2.0
"""Seconds; there are signs of life four times as often."""

MARK, END = "mark", "end"
"""Messages of these tests to themselves."""


class Notified:
    """Messages at a socket, received at once: Linux drops messages while 10 of them wait."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._messages: queue.SimpleQueue[str] = queue.SimpleQueue()

    def take(self) -> None:
        """Take messages, until END."""
        while (message := self._listener.recv(4096).decode()) != END:
            self._messages.put(message)

    def send(self, message: str) -> None:
        """Send a message to this socket."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(message.encode(), self._listener.getsockname())

    def wait_for(self, wanted: str) -> None:
        """Drop messages up to `wanted`."""
        while self._messages.get(timeout=PATIENCE) != wanted:
            pass

    def drop_all(self) -> None:
        """Drop what was sent already."""
        self.send(MARK)
        self.wait_for(MARK)

    def is_silent(self, seconds: float) -> bool:
        """Return True if no message comes for `seconds`."""
        try:
            self._messages.get(timeout=seconds)
        except queue.Empty:
            return True
        return False


@pytest.fixture
def notified(tmp_path: Path) -> Iterator[Notified]:
    """The socket, at `tmp_path`/notify."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        notified = Notified(listener)
        taking = threading.Thread(target=notified.take)
        taking.start()
        try:
            yield notified
        finally:
            notified.send(END)
            taking.join()


def test_systemd_hears_of_the_start_the_life_and_the_stop(
    tmp_path: Path, notified: Notified, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Signs of life come from the event loop: while it is blocked there are no signs."""
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", str(int(WATCHDOG * 1e6)))
    (tmp_path / "models").mkdir()
    with cohort(
        tmp_path / "models", tmp_path, ready=False, program=COMMAND, allow_empty=1
    ) as server:
        notified.wait_for("READY=1")
        notified.wait_for("WATCHDOG=1")
        notified.wait_for("STATUS=ready")
        server.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, server.process.pid, os.WSTOPPED)
        notified.drop_all()
        assert notified.is_silent(WATCHDOG)
        server.process.send_signal(signal.SIGCONT)
        notified.wait_for("WATCHDOG=1")
        server.process.send_signal(signal.SIGTERM)
        notified.wait_for("STOPPING=1\nSTATUS=draining")
        assert server.process.wait(PATIENCE) == 0


def test_a_socket_may_be_abstract() -> None:
    """Its name begins with @, as systemd writes it."""
    name = f"cohort-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0{name}")
        Systemd(f"@{name}").notify("READY=1", "STATUS=ready")
        assert listener.recv(4096) == b"READY=1\nSTATUS=ready"


def test_nobody_has_to_listen(tmp_path: Path) -> None:
    """Messages without a listener are lost: no error and no wait, even if the socket is full."""
    Systemd().notify("READY=1")
    Systemd(str(tmp_path / "none")).notify("READY=1")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "full"))
        for _ in range(1000):
            Systemd(str(tmp_path / "full")).notify("WATCHDOG=1")


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        ({}, 0.0),
        ({"WATCHDOG_USEC": "30000000"}, 0.0),
        ({"NOTIFY_SOCKET": "/s", "WATCHDOG_USEC": "30000000"}, 30.0),
        ({"NOTIFY_SOCKET": "/s", "WATCHDOG_USEC": "nonsense"}, 0.0),
        ({"NOTIFY_SOCKET": "/s", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, 0.0),
    ],
)
def test_the_watchdog_is_what_the_environment_says(
    environment: dict[str, str], seconds: float
) -> None:
    """The variables are for this process, or they do not count."""
    assert Systemd.of(environment).watchdog_seconds == seconds
