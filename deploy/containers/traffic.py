"""Callers that never ask twice, so that whatever goes wrong is counted."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

SMALL = {"model": "iris", "inputs": {"features": [[5.1, 3.5, 1.4, 0.2]] * 40}}  # 1 KB
LARGE = {"model": "iris", "inputs": {"features": [[5.1, 3.5, 1.4, 0.2]] * 4400}}  # 100 KB

BROKEN = {"model": "broken", "inputs": {"x": [[1.0]]}}


@dataclass
class Traffic:
    """Expected answers, by status, and others, by status or reason."""

    answered: Counter[int] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    going: bool = True

    async def call(
        self, port: int, body: Mapping[str, object], *, reuse: bool, wanted: int = 200
    ) -> None:
        """Ask again and again, over one connection or over a new one each time."""
        text = json.dumps(body).encode()
        head = f"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-length: {len(text)}\r\n\r\n"
        streams = None
        while self.going:
            try:
                streams = streams or await asyncio.open_connection("127.0.0.1", port)
                reader, writer = streams
                writer.write(head.encode() + text)
                async with asyncio.timeout(30):
                    answer = (await reader.readuntil(b"\r\n\r\n")).lower()
                    length = int(answer.split(b"content-length: ")[1].split(b"\r", 1)[0])
                    await reader.readexactly(length)
                if (status := int(answer[9:12])) == wanted:
                    self.answered[status] += 1
                else:
                    self.failed[f"{status} for {wanted}"] += 1
                again = reuse and b"connection: close" not in answer
            except (OSError, EOFError, IndexError, TimeoutError) as error:
                self.failed[type(error).__name__] += 1
                again = False
            if not again and streams:
                streams[1].close()
                streams = None
            await asyncio.sleep(0.005)


@asynccontextmanager
async def traffic(port: int) -> AsyncIterator[Traffic]:
    """Bodies of 1 KB and 100 KB over reused and new connections, while the block runs."""
    counted = Traffic()
    async with asyncio.TaskGroup() as tasks:
        for body in (SMALL, LARGE):
            for reuse in (True, False):
                for _ in range(2):
                    tasks.create_task(counted.call(port, body, reuse=reuse))
        # A model that no replica can serve does not affect others.
        tasks.create_task(counted.call(port, BROKEN, reuse=True, wanted=503))
        try:
            yield counted
        finally:
            counted.going = False
