"""Callers that ask again once answered, as HTTP clients for Python send it.

    python -m benchmarks.callers NAME URL BODY CONNECTIONS SECONDS

BODY is a file. Prints how many requests were answered, in how many seconds; an answer that is not
200 ends it. `split` and `opening` are not clients: they send the bytes themselves, to every
connection before they wait for the first answer. So the server forms batches as large as with a
generator in C.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import socket
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep
from typing import Any
from urllib.parse import urlsplit

from benchmarks.openloop import is_whole
from benchmarks.workloads import JSON

PAUSE = 0.002
"""Seconds between a head and its body, in which the server reads the head."""


@dataclass(frozen=True)
class Plan:
    """Whom to ask what, over how many connections, until when on the performance clock."""

    url: str
    body: bytes
    connections: int
    until: float


def split(plan: Plan) -> int:
    """Kept connections; the body follows its head a moment later."""
    sockets = [_opened(plan) for _ in range(plan.connections)]
    count = 0
    while perf_counter() < plan.until:
        for one in sockets:
            one.sendall(_head(plan))
        sleep(PAUSE)
        for one in sockets:
            one.sendall(plan.body)
        for one in sockets:
            _hear(one)
        count += len(sockets)
    for one in sockets:
        one.close()
    return count


def opening(plan: Plan) -> int:
    """A connection for each request, which the caller closes; head and body in one segment."""
    count = 0
    while perf_counter() < plan.until:
        sockets = []
        for _ in range(plan.connections):
            sockets.append(_opened(plan))
            sockets[-1].sendall(_head(plan) + plan.body)
        for one in sockets:
            _hear(one)
            one.close()
        count += len(sockets)
    return count


def _opened(plan: Plan) -> socket.socket:
    address = urlsplit(plan.url)
    one = socket.create_connection((address.hostname or "", address.port or 80), timeout=60)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return one


def _head(plan: Plan) -> bytes:
    address = urlsplit(plan.url)
    lines = (
        f"POST {address.path} HTTP/1.1", f"Host: {address.netloc}",
        "Content-Type: application/json", f"Content-Length: {len(plan.body)}", "", "",
    )  # fmt: skip
    return "\r\n".join(lines).encode()


def _hear(one: socket.socket) -> None:
    answer = b""
    while not is_whole(answer):
        data = one.recv(65536)
        if not data:
            raise ConnectionError("the server closed a connection")
        answer += data
    if not answer.startswith(b"HTTP/1.1 200"):
        raise ConnectionError(answer.decode())


def requests(plan: Plan) -> int:
    """Return a thread and a `requests.Session` for each connection."""
    import requests as library  # noqa: PLC0415 - only one of the clients is measured at a time

    return _in_threads(plan, library.Session, "data")


def httpx(plan: Plan) -> int:
    """Return a thread and an `httpx.Client` for each connection."""
    import httpx as library  # noqa: PLC0415 - as above

    return _in_threads(plan, lambda: library.Client(verify=False, timeout=60), "content")


def _in_threads(plan: Plan, client: Callable[[], Any], body: str) -> int:
    """Ask with a client for each thread, whose word for a body is `body`."""

    def call(_: int) -> int:
        count = 0
        with client() as one:
            while perf_counter() < plan.until:
                one.post(plan.url, headers=JSON, **{body: plan.body}).raise_for_status()
                count += 1
        return count

    with ThreadPoolExecutor(plan.connections) as threads:
        return sum(threads.map(call, range(plan.connections)))


def aiohttp(plan: Plan) -> int:
    """Return a task for each connection of one `aiohttp.ClientSession`."""
    import aiohttp as library  # noqa: PLC0415 - as above

    async def call(session: library.ClientSession) -> int:
        count = 0
        while perf_counter() < plan.until:
            async with session.post(plan.url, data=plan.body, headers=JSON) as answer:
                answer.raise_for_status()
                await answer.read()
            count += 1
        return count

    async def all_calls() -> int:
        async with library.ClientSession() as session:
            return sum(await asyncio.gather(*(call(session) for _ in range(plan.connections))))

    return asyncio.run(all_calls())


CALLERS: dict[str, Callable[[Plan], int]] = {
    one.__name__: one for one in (split, opening, requests, httpx, aiohttp)
}


def main() -> None:
    """Print the result as JSON."""
    name, url, body, connections, seconds = sys.argv[1:]
    if name in {"requests", "httpx", "aiohttp"}:
        importlib.import_module(name)  # which takes up to a second
    began = perf_counter()
    plan = Plan(url, Path(body).read_bytes(), int(connections), began + float(seconds))
    count = CALLERS[name](plan)
    heard = {"requests": count, "seconds": perf_counter() - began}
    print("RESULT", json.dumps(heard))


if __name__ == "__main__":
    main()
