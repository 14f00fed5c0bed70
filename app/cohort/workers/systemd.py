"""Notifications to systemd: the process has started, is alive, or stops.

https://www.freedesktop.org/software/systemd/man/latest/sd_notify.html
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Self


class Systemd:
    """The socket that a supervisor listens on, if there is one.

    watchdog_seconds: Maximum time between two signs of life; 0: no limit.

    address: The path of the socket; a leading "@" means the abstract namespace. Empty: there is no
        supervisor.
    """

    def __init__(self, address: str = "", watchdog_seconds: float = 0.0) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.watchdog_seconds = watchdog_seconds if address else 0.0

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self:
        """Return the supervisor in systemd's variables `NOTIFY_SOCKET` and `WATCHDOG_USEC`."""
        microseconds = environment.get("WATCHDOG_USEC", "")
        ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        seconds = int(microseconds) / 1e6 if microseconds.isdecimal() and ours else 0.0
        return cls(environment.get("NOTIFY_SOCKET", ""), seconds)

    @property
    def listens(self) -> bool:
        """True if there is a supervisor."""
        return bool(self._address)

    def notify(self, *lines: str) -> None:
        """Send `lines`, such as "READY=1", without waiting; they are lost on failure."""
        if not self._address:
            return
        with (
            suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender,
        ):
            sender.setblocking(False)
            sender.sendto("\n".join(lines).encode(), self._address)
