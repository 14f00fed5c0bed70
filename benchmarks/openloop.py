"""Open loop: requests arrive by a Poisson process whether or not earlier ones are answered.

    python -m benchmarks.openloop PORT REQUEST.http RATE SECONDS [CONNECTIONS]

The generator is a separate process on epoll, with microsecond waits. Latency counts from when a
request was due, so neither a slow server nor a late generator hides anything (no coordinated
omission). A request that finds every connection taken waits for one, and that wait counts. The
generator's own lag, from due to handled, is reported as well.
"""

from __future__ import annotations

import gc
import json
import os
import select
import socket
import sys
from collections import deque
from contextlib import suppress
from pathlib import Path
from random import Random
from time import perf_counter

REAL_TIME_RATE = 1000
"""A second: up to here it never waits for a core; beyond, it would keep one from the server."""


class Line:
    """One connection with at most one request on its way."""

    __slots__ = ("due", "held", "socket")

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.due = 0.0
        self.held = b""


def run(
    port: int, request: bytes, rate: float, seconds: float, connections: int
) -> dict[str, float]:
    """Send, wait for the last answer, and say how it went, in seconds."""
    lines = [Line(port) for _ in range(connections)]
    by_number = {line.socket.fileno(): line for line in lines}
    poll = select.epoll()
    for number in by_number:
        poll.register(number, select.EPOLLIN)
    random = Random(0)
    free, waiting = list(lines), deque[float]()
    latencies: list[float] = []
    lags: list[float] = []
    failures = 0
    gc.disable()
    start = perf_counter()
    end, due = start + seconds, start + random.expovariate(rate)
    while True:
        now = perf_counter()
        while due <= now and due < end:
            waiting.append(due)
            lags.append(now - due)
            due += random.expovariate(rate)
        while waiting and free:
            line = free.pop()
            line.due = waiting.popleft()
            line.socket.send(request)
        if due >= end and len(free) == connections and not waiting:
            break
        if now > end + 30:
            failures += connections - len(free) + len(waiting)
            break
        pause = max(due - perf_counter(), 0.0) if due < end else 1.0
        if pause > 2e-5:
            select.select([poll], [], [], pause)  # epoll's own timeout counts milliseconds
        for number, _ in poll.poll(0):
            line = by_number[number]
            data = line.socket.recv(65536)
            if not data:
                raise ConnectionError("the server closed a connection")
            line.held += data
            if is_whole(line.held):
                latencies.append(perf_counter() - line.due)
                failures += not line.held.startswith(b"HTTP/1.1 200")
                line.held = b""
                free.append(line)
    latencies.sort()
    lags.sort()
    return {
        "asked": rate,
        "sent": len(lags) / seconds,
        "p50": _at(latencies, 0.5),
        "p99": _at(latencies, 0.99),
        "p999": _at(latencies, 0.999),
        "worst": latencies[-1] if latencies else 0.0,
        "lag_p50": _at(lags, 0.5),
        "lag_p99": _at(lags, 0.99),
        "failures": failures,
    }


def is_whole(answer: bytes) -> bool:
    """Return True if the answer is complete."""
    head, end, body = answer.partition(b"\r\n\r\n")
    if not end:
        return False
    _, _, rest = head.lower().partition(b"content-length:")
    return len(body) >= int(rest.split(b"\r\n", 1)[0])


def _at(values: list[float], share: float) -> float:
    return values[min(int(share * len(values)), len(values) - 1)] if values else 0.0


def main() -> None:
    """Print the result as JSON."""
    port, path, rate, seconds, *more = sys.argv[1:]
    with suppress(PermissionError):  # or on a busy machine it measures its own waiting for a core
        if float(rate) <= REAL_TIME_RATE:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        else:
            os.nice(-10)
    connections = int(more[0]) if more else 64
    request = Path(path).read_bytes()
    print(json.dumps(run(int(port), request, float(rate), float(seconds), connections)))


if __name__ == "__main__":
    main()
