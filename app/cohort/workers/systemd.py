"""What systemd is told: that the process has started, that it is alive, that it stops.

https://www.freedesktop.org/software/systemd/man/latest/sd_notify.html
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Self


class Systemd:
    """The socket that a supervisor listens on, where there is one.

    watchdog_seconds: How long it waits for the next sign of life; 0: it waits for none.

    address: The path of the socket; one that begins with "@" is in the abstract namespace. Empty:
        nobody listens.
    """

    def __init__(self, address: str = "", watchdog_seconds: float = 0.0) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.watchdog_seconds = watchdog_seconds if address else 0.0

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self:
        """What the environment names, as systemd sets it: `NOTIFY_SOCKET` and `WATCHDOG_USEC`."""
        microseconds = environment.get("WATCHDOG_USEC", "")
        ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        seconds = int(microseconds) / 1e6 if microseconds.isdecimal() and ours else 0.0
        return cls(environment.get("NOTIFY_SOCKET", ""), seconds)

    @property
    def listens(self) -> bool:
        """Whether somebody does."""
        return bool(self._address)

    def tell(self, *lines: str) -> None:
        """Send `lines`, such as "READY=1". What nobody takes is lost; it never waits."""
        if not self._address:
            return
        with (
            suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender,
        ):
            sender.setblocking(False)
            sender.sendto("\n".join(lines).encode(), self._address)
