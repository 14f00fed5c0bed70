"""What systemd is told, by a real process on a socket that stands for it."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.workers.systemd import Systemd
from tests.e2e.processes import COMMAND, cohort
from tests.waiting import PATIENCE

WATCHDOG = 0.4


@pytest.fixture
def notified(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket, at `tmp_path`/notify."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(PATIENCE)
        yield listener


def read_until(listener: socket.socket, wanted: str) -> list[str]:
    """What comes, up to the message `wanted`."""
    messages: list[str] = []
    while not messages or messages[-1] != wanted:
        messages.append(listener.recv(4096).decode())
    return messages


def read_all(listener: socket.socket) -> list[str]:
    """What has come already."""
    messages: list[str] = []
    listener.setblocking(False)
    try:
        while True:
            messages.append(listener.recv(4096).decode())
    except BlockingIOError:
        return messages
    finally:
        listener.settimeout(PATIENCE)


def test_systemd_hears_of_the_start_the_life_and_the_stop(
    tmp_path: Path, notified: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Signs of life come from the event loop: while that stands still there are none."""
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", str(int(WATCHDOG * 1e6)))
    (tmp_path / "models").mkdir()
    with cohort(
        tmp_path / "models", tmp_path, ready=False, program=COMMAND, allow_empty=1
    ) as server:
        read_until(notified, "READY=1")
        read_until(notified, "WATCHDOG=1")
        read_until(notified, "STATUS=ready")
        server.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, server.process.pid, os.WSTOPPED)
        read_all(notified)
        notified.settimeout(2 * WATCHDOG)
        with pytest.raises(TimeoutError):
            notified.recv(4096)
        notified.settimeout(PATIENCE)
        server.process.send_signal(signal.SIGCONT)
        read_until(notified, "WATCHDOG=1")
        server.process.send_signal(signal.SIGTERM)
        read_until(notified, "STOPPING=1\nSTATUS=draining")
        assert server.process.wait(PATIENCE) == 0


def test_a_socket_may_be_abstract() -> None:
    """Its name begins with @, as systemd writes it."""
    name = f"cohort-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0{name}")
        Systemd(f"@{name}").tell("READY=1", "STATUS=ready")
        assert listener.recv(4096) == b"READY=1\nSTATUS=ready"


def test_nobody_has_to_listen(tmp_path: Path) -> None:
    """What nobody takes is lost: no error, no wait, also with a socket that is full."""
    Systemd().tell("READY=1")
    Systemd(str(tmp_path / "none")).tell("READY=1")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "full"))
        for _ in range(1000):
            Systemd(str(tmp_path / "full")).tell("WATCHDOG=1")


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
    """For this process, or for none."""
    assert Systemd.of(environment).watchdog_seconds == seconds
