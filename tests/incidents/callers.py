"""Callers at a fixed pace, over HTTP and gRPC, without retries, during any fault."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import inf
from time import monotonic

import numpy as np
from grpc import aio

from tests.deploy.balancers import Balancer, close
from tests.rpc.client import connected
from tests.waiting import PATIENCE

ROWS = np.random.default_rng(0).random((1, 100)).astype(np.float32)
BODY = json.dumps({"inputs": {"x": ROWS.tolist()}}).encode()
REQUEST = (
    b"POST /models/mlp/predict HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(BODY)
) + BODY

Ask = Callable[[], Coroutine[None, None, str]]


@dataclass(frozen=True, slots=True)
class Answered:
    """When a caller asked (monotonic), the seconds it waited, and the error, or "" if right."""

    asked: float
    seconds: float
    wrong: str


@dataclass
class Heard:
    """All that was answered, over both protocols."""

    answers: list[Answered] = field(default_factory=list)

    @property
    def failures(self) -> Counter[str]:
        """Counts of errors in answers."""
        return Counter(one.wrong for one in self.answers if one.wrong)

    def asked_since(self, moment: float) -> int:
        """Return how many answers are to requests sent at `moment` or later."""
        return sum(one.asked >= moment for one in self.answers)

    def waited(self, share: float, since: float = 0, until: float = inf) -> float:
        """The seconds that this share of those waited at most who asked between these moments."""
        seconds = sorted(one.seconds for one in self.answers if since <= one.asked < until)
        return seconds[int(share * (len(seconds) - 1))]


@dataclass
class Http:
    """Asks over connections that are used again, as many as it takes."""

    port: int
    idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = field(default_factory=list)

    async def ask(self) -> str:
        """Ask once; what is wrong with the answer."""
        streams = self.idle.pop() if self.idle else None
        reader, writer = streams or await asyncio.open_connection("127.0.0.1", self.port)
        again = False
        try:
            writer.write(REQUEST)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            text = await reader.readexactly(int(head.split(b"content-length: ")[1].split()[0]))
            again = b"connection: close" not in head
        finally:
            if again:
                self.idle.append((reader, writer))
            else:
                await close(writer)
        return "" if head[9:12] == b"200" and b'"outputs"' in text else f"{head[:16]!r} {text!r}"

    async def close(self) -> None:
        """Close what is open."""
        for _, writer in self.idle:
            await close(writer)


@asynccontextmanager
async def calling(balancer: Balancer, *, pace: float = 50) -> AsyncIterator[Heard]:
    """Ask `pace` times a second over each protocol while the block runs, then wait for all."""
    heard, over = Heard(), asyncio.Event()
    http = Http(balancer.port)
    async with connected(f"127.0.0.1:{balancer.grpc_port}", enable_retries=0) as client:

        async def ask_grpc() -> str:
            return "" if (await client.infer("mlp", {"x": ROWS})).keys() else "no outputs"

        async with asyncio.TaskGroup() as tasks:
            for ask in (http.ask, ask_grpc):
                tasks.create_task(_at_a_pace(ask, pace, heard, over))
            try:
                yield heard
            finally:
                over.set()
    await http.close()


async def _at_a_pace(ask: Ask, pace: float, heard: Heard, over: asyncio.Event) -> None:
    async with asyncio.TaskGroup() as tasks:
        due = monotonic()
        while not over.is_set():
            tasks.create_task(_heard(ask, heard))
            due += 1 / pace
            try:
                async with asyncio.timeout(due - monotonic()):
                    await over.wait()
            except TimeoutError:
                continue


async def _heard(ask: Ask, heard: Heard) -> None:
    asked, wrong = monotonic(), ""
    try:
        async with asyncio.timeout(PATIENCE):
            wrong = await ask()
    except (OSError, EOFError, IndexError, TimeoutError, aio.AioRpcError) as error:
        wrong = f"{error!r}"
    heard.answers.append(Answered(asked, monotonic() - asked, wrong))
