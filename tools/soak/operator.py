"""An operator that changes everything, and a machine that fails, at random, one act at a time."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import httpx

from tests import onnx_models
from tests.chaos.callers import put
from tests.e2e.processes import Cohort
from tools.soak.ledger import CHANGING, LEFT, SLOW, STEADY

ADMIN = {"authorization": "Bearer admin"}

CONFIG = "versions: all\n"


def publish(models: Path) -> None:
    """Publish the models and versions that exist at the beginning."""
    for name in (STEADY, CHANGING, LEFT):
        put(models, name, config=CONFIG)
    onnx_models.save(onnx_models.slow(nodes=10, size=128), models / SLOW / "1/model.onnx")


class Operator:
    """Acts on one server and its files. Version 1 of each model stays, and is every baseline.

    acts: The names of the acts so far.
    """

    def __init__(self, server: Cohort, models: Path, random: Random) -> None:
        self.acts: list[str] = []
        self._server = server
        self._models = models
        self._random = random
        self._client = httpx.AsyncClient(base_url=server.url, headers=ADMIN, timeout=60)

    async def operate(self, pause: Callable[[float], Awaitable[None]], over: asyncio.Event) -> None:
        """Act until the soak has ended; then repair everything."""
        acts = (
            self._publish, self._remove, self._break, self._edit_rollout, self._roll_back,
            self._unload, self._truncate, self._move, self._stop, self._hang_up,
        )  # fmt: skip
        async with self._client:
            while not over.is_set():
                act = self._random.choice(acts)
                self.acts.append(act.__name__)
                await act(pause)
                await pause(self._random.uniform(0.1, 0.6))

    def _some_version(self) -> int:
        return self._random.randint(2, 5)

    async def _publish(self, pause: Callable[[float], Awaitable[None]]) -> None:
        model = self._random.choice((STEADY, CHANGING))
        await asyncio.to_thread(put, self._models, model, self._some_version())

    async def _remove(self, pause: Callable[[float], Awaitable[None]]) -> None:
        model = self._random.choice((STEADY, CHANGING))
        shutil.rmtree(self._models / model / str(self._some_version()), ignore_errors=True)

    async def _break(self, pause: Callable[[float], Awaitable[None]]) -> None:
        path = self._models / STEADY / "9/model.onnx"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(self._random.randbytes(self._random.choice((0, 10, 5000))))
        await pause(self._random.uniform(0.5, 2))
        shutil.rmtree(path.parent)

    async def _edit_rollout(self, pause: Callable[[float], Awaitable[None]]) -> None:
        text = ""
        if self._random.random() < 0.8:
            weight, version = self._random.randint(0, 9), self._some_version()
            text = (
                f"{STEADY}:\n  variants:\n    old: {{version: 1, weight: {10 - weight}}}\n"
                f"    new: {{version: {version}, weight: {weight}}}\n"
            )
            if self._random.random() < 0.3:
                text += f"  shadow: {{version: {self._some_version()}, sample: 0.5}}\n"
        file = self._models.parent / "rollouts.yaml"
        new = file.with_suffix(".new")
        new.write_text(text)
        new.rename(file)

    async def _roll_back(self, pause: Callable[[float], Awaitable[None]]) -> None:
        action = self._random.choice(("rollback", "clear"))
        await self._client.post(f"/admin/rollouts/{STEADY}/{action}/new")

    async def _unload(self, pause: Callable[[float], Awaitable[None]]) -> None:
        await self._client.post(f"/admin/models/{CHANGING}/unload")
        await pause(self._random.uniform(0, 1))
        await self._client.post(f"/admin/models/{CHANGING}/load")

    async def _truncate(self, pause: Callable[[float], Awaitable[None]]) -> None:
        file = self._models / STEADY / "1/model.onnx"
        content = file.read_bytes()
        os.truncate(file, self._random.choice((0, len(content) // 2)))
        await pause(self._random.uniform(0, 2))
        file.write_bytes(content)

    async def _move(self, pause: Callable[[float], Awaitable[None]]) -> None:
        away = self._models.rename(self._models.with_name("away"))
        await pause(self._random.uniform(0, 2))
        away.rename(self._models)

    async def _stop(self, pause: Callable[[float], Awaitable[None]]) -> None:
        self._server.process.send_signal(signal.SIGSTOP)
        await pause(self._random.uniform(0, 1))
        self._server.process.send_signal(signal.SIGCONT)

    async def _hang_up(self, pause: Callable[[float], Awaitable[None]]) -> None:
        self._server.process.send_signal(signal.SIGHUP)
