"""Many callers at once, cheap enough that the server is what is measured."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Outcome:
    """One answer: when it was asked for (monotonic), how long it took, and by whom it was given."""

    asked: float
    seconds: float
    status: int
    variant: str
    version: str
    code: str


def encode(path: str, body: object, headers: Mapping[str, str] | None = None) -> bytes:
    """A whole request."""
    text = json.dumps(body).encode()
    lines = [
        f"POST {path} HTTP/1.1",
        "host: x",
        "content-type: application/json",
        f"content-length: {len(text)}",
        *(f"{name}: {value}" for name, value in (headers or {}).items()),
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + text


class Load:
    """Callers that send one request after another, each on a separate connection."""

    def __init__(self, url: str, requests: Iterator[bytes]) -> None:
        self._host, self._port = urlsplit(url).hostname, urlsplit(url).port
        self._requests = requests
        self.outcomes: list[Outcome] = []
        self.going = True

    async def call(self) -> None:
        """Ask until there is nothing more to ask."""
        reader, writer = await asyncio.open_connection(self._host, self._port)
        try:
            while self.going and (request := next(self._requests, None)) is not None:
                asked = time.monotonic()
                writer.write(request)
                head = await reader.readuntil(b"\r\n\r\n")
                at = head.index(b"content-length: ") + 16
                body = json.loads(await reader.readexactly(int(head[at : head.index(b"\r", at)])))
                self.outcomes.append(
                    Outcome(
                        asked,
                        time.monotonic() - asked,
                        int(head[9:12]),
                        body.get("variant") or "",
                        body.get("version") or "",
                        body.get("code", "OK"),
                    )
                )
        finally:
            writer.close()

    def by(self, of: Callable[[Outcome], str], *, since: float = 0.0) -> Counter[str]:
        """Count what was asked `since` then."""
        return Counter(of(one) for one in self.outcomes if one.asked >= since)


async def send(url: str, requests: Iterator[bytes], *, callers: int = 32) -> Load:
    """Send all of `requests`."""
    load = Load(url, requests)
    await asyncio.gather(*(load.call() for _ in range(callers)))
    return load


@asynccontextmanager
async def under_load(
    url: str, requests: Iterator[bytes], *, callers: int = 8
) -> AsyncIterator[Load]:
    """Keep sending `requests` while the block runs; a connection that breaks fails it."""
    load = Load(url, requests)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(callers):
            tasks.create_task(load.call())
        try:
            yield load
        finally:
            load.going = False
