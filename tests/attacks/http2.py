"""HTTP/2 by hand: a gRPC caller that does what no client library would.

https://www.rfc-editor.org/rfc/rfc9113, with headers as literals (https://www.rfc-editor.org/rfc/rfc7541#section-6.2.2).
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Iterable
from time import monotonic

from tests.rpc.client import PATH
from tests.waiting import PATIENCE

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    0,
    1,
    3,
    4,
    6,
    7,
    8,
    9,
)
END_STREAM, ACK, END_HEADERS = 1, 1, 4
INITIAL_WINDOW_SIZE = 4
FIRST_WINDOW = 65535
MAX_FRAME = 16384

Header = tuple[str, str]


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return (
        struct.pack(">I", len(payload))[1:]
        + bytes([kind, flags])
        + struct.pack(">I", stream)
        + payload
    )


def literal(name: str, value: str) -> bytes:
    """A header that is in no table."""
    return b"\0" + b"".join(_length(len(text)) + text.encode() for text in (name, value))


def _length(size: int) -> bytes:
    if size < 127:
        return bytes([size])
    size -= 127
    parts = [127]
    while size >= 128:
        parts.append(size % 128 + 128)
        size //= 128
    return bytes([*parts, size])


def call_headers(method: str = "ModelInfer", more: Iterable[Header] = ()) -> bytes:
    path = method if method.startswith("/") else f"{PATH}/{method}"
    named = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "cohort")]
    named += [("content-type", "application/grpc"), ("te", "trailers"), *more]
    return b"".join(literal(*one) for one in named)


def message(data: bytes, *, announced: int | None = None, compressed: bool = False) -> bytes:
    """A gRPC message; `announced` is its length where it is not all of it."""
    size = len(data) if announced is None else announced
    return struct.pack(">?I", compressed, size) + data


class Peer:
    """A connection. `statuses` holds how each call ended, `gone` why the connection ended."""

    def __init__(self, address: str, *, window: int = FIRST_WINDOW) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=PATIENCE)
        self.statuses: dict[int, bytes] = {}
        self.received = 0  # bytes of DATA
        self.gone = ""
        self._read = b""
        self._next = 1
        self._windows = {0: FIRST_WINDOW}
        self._first_window = FIRST_WINDOW
        self._waiting = select.poll()
        self._waiting.register(self.socket, select.POLLIN)
        self.write(PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, window)))

    def close(self) -> None:
        self.socket.close()

    def write(self, data: bytes) -> None:
        """Send bytes, unless the connection has ended."""
        try:
            self.socket.sendall(data)
        except OSError as error:
            self.gone = self.gone or str(error)

    def call(self, method: str = "ModelInfer", more: Iterable[Header] = ()) -> int:
        """Begin a call, and give its stream."""
        stream = self.next_stream()
        self.write(frame(HEADERS, END_HEADERS, stream, call_headers(method, more)))
        return stream

    def next_stream(self) -> int:
        """The number of the next stream, which is the caller's to open."""
        stream, self._next = self._next, self._next + 2
        self._windows[stream] = self._first_window
        return stream

    def send(
        self, stream: int, data: bytes, *, end: bool = False, seconds: float = PATIENCE
    ) -> int:
        """Send as much as the windows allow within `seconds`; return how many bytes that was."""
        sent, until = 0, monotonic() + seconds
        while sent < len(data) and monotonic() < until:
            self.read()
            if self.gone or stream not in self._windows or stream in self.statuses:
                return sent
            size = min(len(data) - sent, self._windows[0], self._windows[stream], MAX_FRAME)
            if size <= 0:
                self.read(0.1)
                continue
            self.write(frame(DATA, 0, stream, data[sent : sent + size]))
            sent += size
            self._windows[0] -= size
            self._windows[stream] -= size
        if end:
            self.write(frame(DATA, END_STREAM, stream))
        return sent

    def read(self, seconds: float = 0) -> None:
        """Read all available bytes; wait for the first of them for `seconds`."""
        while not self.gone and self._waiting.poll(seconds * 1000):
            seconds = 0
            try:
                data = self.socket.recv(1 << 20)
            except OSError as error:
                self.gone = str(error)
                return
            self.gone = "" if data else "closed"
            self._read += data
            while len(self._read) >= 9:
                end = 9 + int.from_bytes(self._read[:3])
                if len(self._read) < end:
                    break
                head, payload, self._read = self._read[3:9], self._read[9:end], self._read[end:]
                self._take(head[0], head[1], int.from_bytes(head[2:]), payload)

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == DATA:
            self.received += len(payload)
        elif kind == HEADERS and flags & END_STREAM:
            self.statuses[stream] = payload
        elif kind == RST_STREAM:
            self.statuses.setdefault(stream, b"reset")
        elif kind == GOAWAY:
            self.gone = f"goaway {payload[8:]!r}"
        elif kind == WINDOW_UPDATE:
            before = self._windows.get(stream, self._first_window)
            self._windows[stream] = before + int.from_bytes(payload)
        elif kind == PING and not flags & ACK:
            self.write(frame(PING, ACK, 0, payload))
        elif kind == SETTINGS and not flags & ACK:
            self._set(dict(struct.iter_unpack(">HI", payload)))

    def _set(self, settings: dict[int, int]) -> None:
        if INITIAL_WINDOW_SIZE in settings:
            more = settings[INITIAL_WINDOW_SIZE] - self._first_window
            self._first_window += more
            for stream in self._windows:
                self._windows[stream] += more if stream else 0
        self.write(frame(SETTINGS, ACK, 0))
