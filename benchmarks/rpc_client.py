"""Calls over gRPC from many connections in a closed loop, as grpc-go's client encodes them.

    python -m benchmarks.rpc_client '{"port": 8001, "message": FILE, "seconds": 2, …}'

It is a separate process, which waits for a line on its standard input, warm by then, and prints a
`RESULT`. Its HTTP/2 is only what a benchmark needs: it takes no account of the server's windows,
which requests of some hundred bytes never fill.
"""

from __future__ import annotations

import json
import random
import selectors
import socket
import sys
import time
from dataclasses import asdict, dataclass
from itertools import chain, repeat
from pathlib import Path

from hpack import Encoder

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4
WIDEST = 2**31 - 1
WARM_SECONDS = 0.5

HEADS_AHEAD = 1500
"""Request heads prepared for each connection, if calls have separate heads."""

MAX_OK = 40
"""Bytes of the trailers of a call that went well, at most: they have no message."""


@dataclass(frozen=True)
class Plan:
    """The calls to send.

    message: The file of the request.
    method: `ModelInfer`, or `ModelStreamInfer`: all messages of a connection on one stream.
    depth: Requests of a connection that wait for their answers.
    traced: True if each call has a separate deadline and trace.
    """

    port: int
    message: str
    method: str = "ModelInfer"
    connections: int = 64
    depth: int = 1
    seconds: float = 2.0
    traced: bool = False

    def text(self) -> str:
        """As the process takes it."""
        return json.dumps(asdict(self))


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return a frame of HTTP/2."""
    head = len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big")
    return head + payload


class Peer:
    """One connection; `waits`: the requests that have no answer yet."""

    def __init__(self, plan: Plan, message: bytes) -> None:
        self._plan = plan
        self._message = b"\0" + len(message).to_bytes(4, "big") + message
        self._encoder = Encoder()
        # Written before: clients in other languages take much less for it than this one.
        heads = [self._head() for _ in range(HEADS_AHEAD if plan.traced else 2)]
        more = iter(self._head, None) if plan.traced else repeat(heads[-1])
        self._heads = chain(heads, more)
        self._next = 1
        self._over = False
        self.waits = 0
        self._rest = b""
        self.socket = socket.create_connection(("127.0.0.1", plan.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        begin = PREFACE + frame(SETTINGS, 0, 0, b"\0\4" + WIDEST.to_bytes(4, "big"))
        begin += frame(WINDOW, 0, 0, (WIDEST - 65535).to_bytes(4, "big"))
        if plan.method == "ModelStreamInfer":
            begin += frame(HEADERS, END_HEADERS, 1, next(self._heads))
        self.socket.sendall(begin + self._requests(plan.depth))

    def answers(self) -> int:
        """Take what has come, ask as often again until the end, and say how often that was.

        Raises RuntimeError where a call failed.
        """
        data = self._rest + self.socket.recv(1 << 18)
        at, found, replies, failed = 0, 0, b"", False
        while len(data) - at >= 9:
            length = int.from_bytes(data[at : at + 3], "big")
            kind, flags = data[at + 3], data[at + 4]
            end = at + 9 + length
            if end > len(data):
                break
            if kind == DATA and length:
                found += 1
            elif kind in (SETTINGS, PING) and not flags & ACK:
                replies += frame(kind, ACK, 0, data[at + 9 : end] if kind == PING else b"")
            elif kind in (RESET, GOAWAY) or (
                kind == HEADERS and flags & END_STREAM and length > MAX_OK
            ):
                failed = True
            at = end
        if failed or not data:
            raise RuntimeError(f"a call failed: {data[:300]!r}")
        self._rest = data[at:]
        self.waits -= found
        self.socket.sendall(replies + self._requests(0 if self._over else found))
        return found

    def end(self) -> None:
        """Ask no more: what waits is answered yet."""
        self._over = True

    def _requests(self, count: int) -> bytes:
        self.waits += count
        if self._plan.method == "ModelStreamInfer":
            return frame(DATA, 0, 1, self._message) * count
        parts = []
        for _ in range(count):
            parts.append(frame(HEADERS, END_HEADERS, self._next, next(self._heads)))
            parts.append(frame(DATA, END_STREAM, self._next, self._message))
            self._next += 2
        return b"".join(parts)

    def _head(self) -> bytes:
        headers = [
            (":method", "POST"), (":scheme", "http"),
            (":path", f"/inference.GRPCInferenceService/{self._plan.method}"),
            (":authority", f"127.0.0.1:{self._plan.port}"), ("content-type", "application/grpc"),
            ("user-agent", "grpc-go/1.76.0"), ("te", "trailers"),
        ]  # fmt: skip
        if self._plan.traced:
            headers.append(("grpc-timeout", f"{random.randint(1_000_000, 2_000_000)}u"))
            trace, span = random.getrandbits(128), random.getrandbits(64)
            headers.append(("traceparent", f"00-{trace:032x}-{span:016x}-01"))
        return bytes(self._encoder.encode(headers))


def main() -> None:
    """Call until the time has ended."""
    plan = Plan(**json.loads(sys.argv[1]))
    message = Path(plan.message).read_bytes()
    selector = selectors.DefaultSelector()
    for _ in range(plan.connections):
        peer = Peer(plan, message)
        selector.register(peer.socket, selectors.EVENT_READ, peer)

    def call(seconds: float) -> int:
        count, until = 0, time.monotonic() + seconds
        while time.monotonic() < until:
            for key, _ in selector.select(1):
                count += key.data.answers()
        return count

    call(WARM_SECONDS)
    print("WARM", flush=True)
    sys.stdin.readline()
    began = time.monotonic()
    count = call(plan.seconds)
    seconds = time.monotonic() - began
    peers = [key.data for key in selector.get_map().values()]
    for peer in peers:
        peer.end()
    while any(peer.waits for peer in peers):  # else Triton's server may crash
        for key, _ in selector.select(1):
            key.data.answers()
    print("RESULT", json.dumps({"requests": count, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
