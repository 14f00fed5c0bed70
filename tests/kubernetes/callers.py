"""Callers of a Service and of a gateway, which never ask twice."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import numpy as np
from grpc import aio

from cohort.tensors import Arrays
from tests.deploy.balancers import close
from tests.rpc.client import Client

PAUSE = 0.05
SECONDS = 65.0
"""Time limit of a caller, which is that of the route."""

BODY = json.dumps({"model": "iris", "inputs": {"features": [[5.1, 3.5, 1.4, 0.2]]}}).encode()
HEAD = f"POST /predict HTTP/1.1\r\nHost: cohort\r\nContent-Length: {len(BODY)}\r\n"

Where = Callable[[], tuple[str, int]]


@dataclass
class Heard:
    """The answers: right ones, by kind of caller and by address; and what was lost."""

    right: Counter[str] = field(default_factory=Counter)
    by: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def call(self, where: Where, *, kind: str, reuse: bool) -> None:
        """Ask again and again, over a connection that is kept or over new ones."""
        request = (HEAD + ("" if reuse else "Connection: close\r\n") + "\r\n").encode() + BODY
        streams, address = None, ("", 0)
        while not self.over.is_set():
            keep = False
            try:
                async with asyncio.timeout(SECONDS):
                    if streams is None:
                        address = where()
                        streams = await asyncio.open_connection(*address)
                    reader, writer = streams
                    writer.write(request)
                    head = (await reader.readuntil(b"\r\n\r\n")).lower()
                    length = int(head.split(b"content-length: ")[1].split(b"\r", 1)[0])
                    body = await reader.readexactly(length)
                self._note(head, body, kind, address[0])
                keep = reuse and b"connection: close" not in head
            except (OSError, EOFError, IndexError, TimeoutError) as error:
                self.lost[f"{kind}: {error!r}"] += 1
            if streams and not keep:
                await close(streams[1])
                streams = None
            with suppress(TimeoutError):
                await asyncio.wait_for(self.over.wait(), PAUSE)
        if streams:
            await close(streams[1])

    def _note(self, head: bytes, body: bytes, kind: str, address: str) -> None:
        right = head[9:12] == b"200" and b'"label":[0]' in body.replace(b" ", b"")
        if right:
            self.right[kind] += 1
            self.by[address] += 1
        else:
            self.lost[f"{kind}: {head[9:12].decode()} {body[:200]!r}"] += 1


@asynccontextmanager
async def calling(where: Where, kind: str, *, callers: int = 3) -> AsyncIterator[Heard]:
    """Ask over kept and over new connections while the block runs."""
    heard = Heard()
    async with asyncio.TaskGroup() as tasks:
        for reuse in (True, False):
            name = f"{kind}, {'kept' if reuse else 'new'} connections"
            for _ in range(callers):
                tasks.create_task(heard.call(where, kind=name, reuse=reuse))
        try:
            yield heard
        finally:
            heard.over.set()


@asynccontextmanager
async def calling_over_grpc(address: str, *, callers: int = 3) -> AsyncIterator[Heard]:
    """Call over gRPC, each caller over a channel that it keeps, while the block runs."""
    heard = Heard()

    async def call() -> None:
        features: Arrays = {"features": np.array([[5.1, 3.5, 1.4, 0.2]], np.float32)}
        alone = [("grpc.use_local_subchannel_pool", 1)]
        async with aio.insecure_channel(address, options=alone) as channel:
            while not heard.over.is_set():
                try:
                    answer = await Client(channel).infer("iris", features)
                    heard.right[f"grpc, label {answer['label'].item()}"] += 1
                except aio.AioRpcError as error:
                    heard.lost[f"grpc: {error.code()} {error.details()}"] += 1
                with suppress(TimeoutError):
                    await asyncio.wait_for(heard.over.wait(), PAUSE)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(callers):
            tasks.create_task(call())
        try:
            yield heard
        finally:
            heard.over.set()
