"""Transfer of accepted connections from the parent to a worker, and their counts."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from struct import Struct
from time import monotonic


class Kind(bytes, Enum):
    """The protocol of a connection: the byte that is sent with it."""

    HTTP = b"c"
    RPC = b"g"


END = b"e"
"""Sent after the last connection."""

TAKEN_AT_ONCE = 64
"""Maximum of connections that a worker takes in one iteration of its event loop."""

_REPORT = Struct("!QQ")  # connections taken so far, and open now


class Channel:
    """The parent's end of a worker's socket for connections.

    given: The number of connections passed.

    own: A socket of `socketpair(AF_UNIX, SOCK_SEQPACKET)`; the worker has the other end.
    """

    def __init__(self, own: socket.socket) -> None:
        own.setblocking(False)
        self.socket = own
        self.given = 0
        self._taken = self._open = 0
        self._untaken: deque[tuple[float, Kind, socket.socket]] = deque()

    @property
    def connections(self) -> int:
        """The worker's open connections, with those that it has not taken yet."""
        return self._open + self.given - self._taken

    def waiting(self, now: float) -> float:
        """Return seconds that the first untaken connection has waited; 0 without one."""
        return now - self._untaken[0][0] if self._untaken else 0.0

    def give(self, connection: socket.socket, kind: Kind = Kind.HTTP) -> bool:
        """Pass a connection; False if the channel is full or broken.

        It stays open here until the worker has taken it. If the worker ends before, another one
        gets it.
        """
        try:
            socket.send_fds(self.socket, [kind.value], [connection.fileno()])
        except OSError:
            return False
        self.given += 1
        self._untaken.append((monotonic(), kind, connection))
        return True

    def end(self) -> None:
        """Send that no more connections come."""
        with suppress(OSError):
            self.socket.send(END)

    def hear(self) -> bool:
        """Read the worker's reports; False if it has closed its end."""
        while True:
            try:
                report = self.socket.recv(_REPORT.size)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if len(report) != _REPORT.size:
                return False
            self._taken, self._open = _REPORT.unpack(report)
            while len(self._untaken) > self.given - self._taken:
                self._untaken.popleft()[2].close()

    def close(self) -> list[tuple[Kind, socket.socket]]:
        """Close this end; return the connections that the worker never took, for others."""
        self.hear()  # reads how many it took before it ended
        self.socket.close()
        left = [(kind, connection) for _, kind, connection in self._untaken]
        self._untaken.clear()
        return left


class Intake:
    """The worker's end: takes connections and reports how many are open.

    own: Its socket.
    serve: Called with each taken connection.
    count_open: Returns the number of open connections.
    on_end: Called once no more connections come: the parent announced it, or has ended.
    """

    def __init__(
        self,
        own: socket.socket,
        serve: Callable[[socket.socket, Kind], None],
        count_open: Callable[[], int],
        on_end: Callable[[], None],
    ) -> None:
        own.setblocking(False)
        self.socket = own
        self._serve, self._count_open, self._on_end = serve, count_open, on_end
        self._taken = 0
        self._reported = (0, 0)
        self.ended = False

    def take(self) -> None:
        """Take waiting connections. `serve` must not read yet: another worker may get them."""
        for connection, kind in self._receive():
            self._taken += 1
            self._serve(connection, kind)
        self.report()

    def _receive(self) -> Sequence[tuple[socket.socket, Kind]]:
        found: list[tuple[socket.socket, Kind]] = []
        while not self.ended and len(found) < TAKEN_AT_ONCE:
            try:
                data, descriptors, _, _ = socket.recv_fds(self.socket, 1, 1)
            except BlockingIOError:
                break
            except OSError:
                data, descriptors = b"", []
            kind = next((one for one in Kind if one.value == data), None)
            for descriptor in descriptors:
                connection = socket.socket(fileno=descriptor)
                connection.setblocking(False)
                found.append((connection, kind or Kind.HTTP))
            if kind is None:
                self.ended = True
                self._on_end()
        return found

    def report(self) -> None:
        """Report changes since the last report to the parent."""
        now = (self._taken, self._count_open())
        if now != self._reported:
            with suppress(OSError):  # the next report includes it
                self.socket.send(_REPORT.pack(*now))
                self._reported = now
