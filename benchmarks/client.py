"""A small HTTP/1.1 client that keeps its connections and notes when each answer came."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter


@dataclass
class Heard:
    """What callers heard: seconds per answer, in order, and statuses other than 200."""

    seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def quantile(self, share: float) -> float:
        """The latency that `share` of the answers stay within, in seconds."""
        ordered = sorted(self.seconds)
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


async def call(
    address: tuple[str, int], path: str, body: bytes, heard: Heard, until: float
) -> None:
    """Ask again and again over one connection until `until` on the performance clock."""
    reader, writer = await asyncio.open_connection(*address)
    request = (
        f"POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    ).encode() + body
    try:
        while perf_counter() < until:
            started = perf_counter()
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(_length(head))
            heard.seconds.append(perf_counter() - started)
            if not head.startswith(b"HTTP/1.1 200"):
                heard.failures.append(head.split(b"\r\n", 1)[0].decode())
    finally:
        writer.close()


def _length(head: bytes) -> int:
    _, _, rest = head.lower().partition(b"content-length:")
    return int(rest.split(b"\r\n", 1)[0])


async def load(
    address: tuple[str, int], path: str, bodies: Sequence[bytes], seconds: float
) -> Heard:
    """One caller per body, all at once, for `seconds`."""
    heard = Heard()
    until = perf_counter() + seconds
    await asyncio.gather(*(call(address, path, body, heard, until) for body in bodies))
    return heard
