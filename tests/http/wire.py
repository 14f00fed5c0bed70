"""HTTP by hand: bytes out, answers in, with nothing in between that would tidy them up."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.waiting import PATIENCE

COMPARED = (
    "allow",
    "connection",
    "content-encoding",
    "content-type",
    "inference-header-content-length",
    "retry-after",
    "transfer-encoding",
    "www-authenticate",
    "x-model-version",
    "x-variant",
)
TIMES = re.compile(rb'"inference_time_ms":[0-9.e+-]+')

LAST = b"GET /health/live HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
"""Sent after a request that leaves the connection open, to end it."""


@dataclass(frozen=True)
class Answer:
    """One answer, whole."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def code(self) -> str:
        """The error's name; OK where it is none."""
        return "OK" if self.status < 400 else str(self.json["code"])

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def compared(self) -> tuple[object, ...]:
        """The parts that must be equal for every server. Times differ, and so do lengths."""
        headers = {name: value for name, value in self.headers.items() if name in COMPARED}
        coded = self.headers.get("content-encoding") == "gzip"
        body = gzip.decompress(self.body) if coded else self.body
        return self.status, headers, TIMES.sub(b'"inference_time_ms":0', body)


def request(
    path: str = "/predict",
    body: bytes | object = b"",
    *headers: str,
    method: str = "POST",
    version: str = "1.1",
) -> bytes:
    """Return a request; it has a Content-Length unless a header gives the body's length."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/{version}", "host: x", *headers]
    names = {line.partition(":")[0].lower() for line in headers}
    if not names & {"content-length", "transfer-encoding"}:
        lines.append(f"content-length: {len(content)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + content


def chunked(*chunks: bytes, extension: str = "", trailers: Sequence[str] = ()) -> bytes:
    """A body in chunks."""
    parts = [b"%x%b\r\n%b\r\n" % (len(one), extension.encode(), one) for one in chunks]
    return b"".join([*parts, b"0\r\n", *(f"{one}\r\n".encode() for one in trailers), b"\r\n"])


def connect(url: str) -> socket.socket:
    """A connection whose every send is a segment."""
    host, _, port = url.rpartition("/")[2].partition(":")
    connection = socket.create_connection((host, int(port)), timeout=PATIENCE)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def exchange(
    url: str, parts: Iterable[bytes], *, heads: Iterable[int] = (), last: bytes | None = LAST
) -> list[Answer]:
    """Send `parts`, the last of them together with `last`, and read until the server closes.

    If `last` is empty, the client shuts down its sending side instead; None leaves the end to the
    server. `heads` are the places of the answers to HEAD.
    """
    *parts, end = [*parts] or [b""]
    with connect(url) as connection:
        with contextlib.suppress(OSError):  # the server may have refused and closed already
            for part in parts:
                connection.sendall(part)
            connection.sendall(end + (last or b""))
            if last == b"":
                connection.shutdown(socket.SHUT_WR)
        return answers(read_all(connection), heads)


def read_all(connection: socket.socket) -> bytes:
    """Everything until the server closes."""
    received = bytearray()
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(1 << 20):
            received += part
    return bytes(received)


def answers(data: bytes, heads: Iterable[int] = ()) -> list[Answer]:
    """Cut a stream into answers; what is left over at the end is an error."""
    found: list[Answer] = []
    places = set(heads)
    while data:
        answer, data = _answer(data, head=len(found) in places)
        found.append(answer)
    return found


def _answer(data: bytes, *, head: bool) -> tuple[Answer, bytes]:
    top, separator, rest = data.partition(b"\r\n\r\n")
    assert separator, f"headers without an end: {data[:200]!r}"
    first, *lines = top.decode("latin-1").split("\r\n")
    version, status, _ = first.split(" ", 2)
    assert version == "HTTP/1.1"
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(": ")
        assert name not in headers, f"{name} is listed twice"
        headers[name] = value
    if head or status.startswith("1") or status == "204":
        return Answer(int(status), headers, b""), rest
    if headers.get("transfer-encoding") == "chunked":
        body, rest = _unchunked(rest)
        return Answer(int(status), headers, body), rest
    length = int(headers["content-length"])
    assert len(rest) >= length, f"the answer ends after {len(rest)} bytes of {length}"
    return Answer(int(status), headers, rest[:length]), rest[length:]


def _unchunked(data: bytes) -> tuple[bytes, bytes]:
    body = b""
    while True:
        size, _, data = data.partition(b"\r\n")
        count = int(size, 16)
        body, data = body + data[:count], data[count + 2 :]
        if not count:
            return body, data
