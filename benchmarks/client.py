"""A small HTTP/1.1 client that keeps its connections and notes when each answer came."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from time import perf_counter


@dataclass
class Heard:
    """The callers' results: seconds per answer, in order, and statuses other than 200."""

    seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def quantile(self, share: float) -> float:
        """Return the latency that `share` of the answers stay within, in seconds."""
        ordered = sorted(self.seconds)
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


@dataclass
class Connection:
    """One kept connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def open(cls, address: tuple[str, int]) -> Connection:
        return cls(*await asyncio.open_connection(*address))

    async def ask(self, path: str, body: bytes, heard: Heard, since: float) -> None:
        """Ask once; `since` on the performance clock is when the request came to be."""
        self.writer.write(
            f"POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        head = await self.reader.readuntil(b"\r\n\r\n")
        await self.reader.readexactly(_length(head))
        heard.seconds.append(perf_counter() - since)
        if not head.startswith(b"HTTP/1.1 200"):
            heard.failures.append(head.split(b"\r\n", 1)[0].decode())


def _length(head: bytes) -> int:
    _, _, rest = head.lower().partition(b"content-length:")
    return int(rest.split(b"\r\n", 1)[0])


async def call(
    address: tuple[str, int], path: str, body: bytes, heard: Heard, until: float
) -> None:
    """Ask again and again over one connection until `until` on the performance clock."""
    one = await Connection.open(address)
    while (now := perf_counter()) < until:
        await one.ask(path, body, heard, now)
    one.writer.close()


async def load(
    address: tuple[str, int], path: str, bodies: Sequence[bytes], seconds: float
) -> Heard:
    """Closed loop: one caller per body, each asking again once answered, for `seconds`."""
    heard = Heard()
    until = perf_counter() + seconds
    await asyncio.gather(*(call(address, path, body, heard, until) for body in bodies))
    return heard


async def arrivals(
    address: tuple[str, int], path: str, body: bytes, rate: float, seconds: float, lines: int = 32
) -> Heard:
    """Open loop: requests arrive `rate` times a second whether or not earlier ones are answered.

    A request that finds all `lines` connections taken waits for one, and that wait counts.
    """
    heard = Heard()
    due: asyncio.Queue[float | None] = asyncio.Queue()

    async def line() -> None:
        one = await Connection.open(address)
        while (arrived := await due.get()) is not None:
            await one.ask(path, body, heard, arrived)
        one.writer.close()

    callers = [asyncio.ensure_future(line()) for _ in range(lines)]
    random = Random(0)
    arrival = perf_counter()
    until = arrival + seconds
    while (arrival := arrival + random.expovariate(rate)) < until:
        await asyncio.sleep(max(0.0, arrival - perf_counter()))
        due.put_nowait(arrival)
    for _ in callers:
        due.put_nowait(None)
    await asyncio.gather(*callers)
    return heard
