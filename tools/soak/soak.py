"""One soak: a real server under callers, changes and faults, all drawn from one seed.

The same seed gives the same requests and acts in the same order, as far as a process and a machine
allow. Their moments differ.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import httpx

from tests.e2e.processes import Cohort, cohort, free_port
from tests.e2e.scrape import Scrape
from tests.rpc.client import connected
from tests.waiting import wait_until
from tools.soak.callers import Clients
from tools.soak.ledger import Ledger
from tools.soak.operator import Operator, publish

REST_CALLERS, LEAVERS, GRPC_CALLERS, STREAMS = 6, 2, 2, 2

MORE_MEMORY = 48 << 20
"""Bytes that memory may grow after the warm-up: garbage, sessions, arenas."""

MORE_THREADS, MORE_DESCRIPTORS, MORE_TASKS = 4, 8, 4
"""Allowed growth: executors and gRPC start theirs on first use."""

OURS_TO_SAY = {"version unavailable", "state folder problem"}
"""The errors that may be logged, because the operator causes them."""


@dataclass(frozen=True)
class Held:
    """The resources that a process holds while idle."""

    memory: int
    threads: int
    descriptors: int
    tasks: int


def held(server: Cohort, counts: Path) -> Held:
    """Return what the process of `server` holds."""
    counts.unlink(missing_ok=True)
    server.process.send_signal(signal.SIGUSR2)
    wait_until(counts.exists)
    process = Path(f"/proc/{server.process.pid}")
    status = (process / "status").read_text()
    (memory,) = re.findall(r"RssAnon:\s+(\d+) kB", status)
    (threads,) = re.findall(r"Threads:\s+(\d+)", status)
    files = len([*(process / "fd").iterdir()])
    return Held(1024 * int(memory), int(threads), files, int(counts.read_text()))


@asynccontextmanager
async def under_load(
    server: Cohort, models: Path, ledger: Ledger, seed: str
) -> AsyncIterator[tuple[Clients, Operator]]:
    """Run all clients and the operator during the block, and answer and repair all after it."""
    over = asyncio.Event()
    clients = Clients(server, ledger, over)
    operator = Operator(server, models, Random(f"{seed} operator"))
    async with connected(server.grpc) as client, asyncio.TaskGroup() as tasks:
        for number in range(REST_CALLERS):
            tasks.create_task(clients.rest(Random(f"{seed} rest {number}")))
        for number in range(LEAVERS):
            tasks.create_task(clients.leaver(Random(f"{seed} leaver {number}")))
        for number in range(GRPC_CALLERS):
            tasks.create_task(clients.grpc(Random(f"{seed} grpc {number}"), client))
        for number in range(STREAMS):
            tasks.create_task(clients.stream(Random(f"{seed} stream {number}"), client))
        tasks.create_task(operator.operate(clients.pause, over))
        try:
            yield clients, operator
        finally:
            over.set()


async def soak(folder: Path, seed: int, seconds: float) -> str:
    """Soak for `seconds`, and return a summary. Raises AssertionError if something does not hold.

    The first third is a warm-up; what the process holds after it may not grow during the rest.
    """
    models, counts, ledger = folder / "models", folder / "tasks", Ledger()
    publish(models)
    acts: list[str] = []
    with cohort(
        models,
        folder,
        under=[sys.executable, "-m", "tools.soak.counted", str(counts)],
        grpc_port=free_port(),
        rollouts=folder / "rollouts.yaml",
        admin_token="admin",
    ) as server:
        measured = []
        for part, share in (("warm-up", 1 / 3), ("soak", 2 / 3)):
            async with under_load(server, models, ledger, f"{seed} {part}") as (clients, operator):
                await clients.pause(seconds * share)
            acts += operator.acts
            await asyncio.to_thread(settle, server, models)
            measured.append(await asyncio.to_thread(held, server, counts))
        assert not ledger.wrong, ledger.wrong[:10]
        assert ledger.answered == ledger.sent
        ledger.compare(Scrape(server.url))
        before, after = measured
        assert after.memory <= before.memory + MORE_MEMORY, measured
        assert after.threads <= before.threads + MORE_THREADS, measured
        assert after.descriptors <= before.descriptors + MORE_DESCRIPTORS, measured
        assert after.tasks <= before.tasks + MORE_TASKS, measured
        assert await asyncio.to_thread(server.stop) == 0
    lines = [json.loads(line) for line in server.logged.splitlines()]
    errors = [line for line in lines if line["level"] in {"error", "critical"}]
    assert not [line for line in errors if line["event"] not in OURS_TO_SAY], errors
    return f"{ledger.answered} answers, {len(acts)} acts; {dict(ledger.outcomes)}; {measured}"


def settle(server: Cohort, models: Path) -> None:
    """Wait until no request is in flight and no problem is left."""
    (models.parent / "rollouts.yaml").unlink(missing_ok=True)
    try:
        wait_until(lambda: not httpx.get(server.url + "/health").json()["problems"])
    except TimeoutError as error:
        problems = httpx.get(server.url + "/health").json()["problems"]
        raise AssertionError(f"two minutes later it still has {problems}") from error
    server.wait_for("/health/ready")
    wait_until(lambda: not Scrape(server.url).value("model_inflight_requests"))
