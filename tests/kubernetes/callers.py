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
from tests.deploy.balancers import Limits, ask_until
from tests.rpc.client import Client

PAUSE = 0.05
SECONDS = 65.0
"""Time limit of a caller, which is that of the route."""

BODY = json.dumps({"model": "iris", "inputs": {"features": [[5.1, 3.5, 1.4, 0.2]]}}).encode()

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

        def answered(status: str, body: bytes, address: str) -> None:
            if status == "200" and b'"label":[0]' in body.replace(b" ", b""):
                self.right[kind] += 1
                self.by[address] += 1
            else:
                self.lost[f"{kind}: {status} {body[:200]!r}"] += 1

        def lost(error: Exception) -> None:
            self.lost[f"{kind}: {error!r}"] += 1

        limits = Limits(SECONDS, PAUSE)
        await ask_until(self.over, where, BODY, reuse, limits, answered=answered, lost=lost)


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
