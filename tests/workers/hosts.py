"""A server of several workers, seen from outside: its processes and their connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import repeat
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.e2e.processes import MODELS, Cohort, cohort
from tests.e2e.scrape import Scrape
from tests.waiting import wait_until

LISTENING = "0A"


def workers_of(server: Cohort) -> list[int]:
    """Return the processes that serve."""
    pid = server.process.pid
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def ready_workers(server: Cohort) -> list[int]:
    """Return the processes that are ready, as reported by one of them; [] without an answer."""
    with suppress(Exception):
        found = server.get("/health").json()
        if found["ready"]:
            others = {one["pid"] for one in found["workers"] if one["ready"]}
            alive = set(workers_of(server))
            if others < alive and len(others) == len(alive) - 1:
                # Their parent also knows, and gives them connections.
                told = Scrape(server.url).value("server_workers_ready")
                return sorted(alive) if told == len(alive) else []
    return []


@contextmanager
def host(folder: Path, count: int, models: Path = MODELS, **settings: Any) -> Iterator[Cohort]:
    """Yield a server of `count` workers, all of them ready."""
    with cohort(models, folder, workers=count, **settings) as server:
        if count > 1:
            wait_for_all(server, count)
        yield server


def wait_for_all(server: Cohort, count: int, without: frozenset[int] = frozenset()) -> list[int]:
    """Wait for `count` ready workers, not one of them in `without`; return their processes."""

    def all_ready() -> list[int]:
        found = ready_workers(server)
        return found if len(found) == count and not without & set(found) else []

    try:
        return wait_until(all_ready)
    except TimeoutError:
        raise AssertionError(f"never {count} workers:\n{server.logged}") from None


def connections_of(pid: int, port: int) -> int:
    """Count the connections to `port` of a process, until it has closed its end itself."""
    ends = {
        fields[9]
        for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
        if (fields := line.split())[1].endswith(f":{port:04X}") and fields[3] != LISTENING
    }
    found = 0
    for one in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            name = str(one.readlink())
            found += name.startswith("socket:[") and name[8:-1] in ends
    return found


def port_of(server: Cohort) -> int:
    """Return the port for HTTP."""
    return int(urlsplit(server.url).port or 0)


class Caller:
    """One keep-alive connection, and what became of its requests."""

    def __init__(self, server: Cohort, requests: Iterator[bytes]) -> None:
        self._address = urlsplit(server.url)
        self._requests = requests
        self.answered = 0
        self.statuses: set[int] = set()
        self.lost = False
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    async def connect(self) -> None:
        """Open the connection."""
        address = self._address
        self.reader, self.writer = await asyncio.open_connection(address.hostname, address.port)

    async def ask(self) -> int:
        """Ask once, on a new connection where the last answer closed it; the status."""
        self.writer.write(next(self._requests))
        head = await self.reader.readuntil(b"\r\n\r\n")
        at = head.index(b"content-length: ") + 16
        await self.reader.readexactly(int(head[at : head.index(b"\r", at)]))
        self.answered += 1
        status = int(head[9:12])
        self.statuses.add(status)
        if b"connection: close" in head:
            await self.close()
            await self.connect()
        return status

    async def ask_until(self, stop: asyncio.Event) -> None:
        """Ask again and again; end with `lost` where the connection breaks."""
        try:
            while not stop.is_set():
                await self.ask()
        except (OSError, asyncio.IncompleteReadError):
            self.lost = True

    async def close(self) -> None:
        """Close the connection."""
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()


@asynccontextmanager
async def calling(
    server: Cohort, request: bytes | Iterator[bytes], count: int
) -> AsyncIterator[list[Caller]]:
    """Connect a number of callers that send one request again and again, or one after the other."""
    requests = repeat(request) if isinstance(request, bytes) else request
    callers = [Caller(server, requests) for _ in range(count)]
    await asyncio.gather(*(one.connect() for one in callers))
    try:
        yield callers
    finally:
        await asyncio.gather(*(one.close() for one in callers))
