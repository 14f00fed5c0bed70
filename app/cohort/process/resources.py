"""What the process may have: connections, memory, its part of what is for all workers."""

from __future__ import annotations

import asyncio
import resource
from contextlib import suppress
from typing import NamedTuple

from cohort.connections.memory import MemoryBudget
from cohort.session import give_back_arenas, give_back_memory

RESERVED_FILES = 256
"""Open files kept for models and logs; and a tenth of the limit where that is more."""

GRPC_SHARE = 4
"""One connection in so many is for gRPC, where there is gRPC: each carries many calls."""

MOST_FILES = 1 << 20
"""The limit of open files is raised up to here at most."""


class Connections(NamedTuple):
    """How many connections there may be of each API."""

    http: int
    grpc: int


PROCESS_BYTES = 150 << 20
"""What a process takes before it has models and requests, and while it inspects a small model."""


def memory_for_requests(available: int, processes: int) -> int:
    """What requests of one of so many processes may hold of the memory for all: a quarter.

    A request takes up to four times what it holds: text, arrays and what a run takes. So it is a
    quarter of what the processes themselves leave, but of a quarter of all at least.
    """
    left = max(available - processes * PROCESS_BYTES, available // 4)
    return left // 4 // processes


IDLE_SECONDS = 10.0
MUCH_BYTES = 64 * 2**20
"""Freed memory is returned once nothing is held and so much was, looked at so often."""


async def return_memory(memory: MemoryBudget) -> None:
    """Give memory back to the system, again and again, once requests that held much are over."""
    while True:
        await asyncio.sleep(IDLE_SECONDS)
        if not memory.used and memory.take_peak() > MUCH_BYTES:
            await asyncio.to_thread(give_back_arenas)
            await asyncio.to_thread(give_back_memory)


def part_of(limit: int, processes: int) -> int:
    """What each of so many processes may have of a limit that is for all of them together."""
    return -(-limit // processes)


def share_connections(available: int, *, grpc: bool) -> Connections:
    """Share them out, so that neither API can take the other's; where `grpc`, each has one."""
    if not grpc:
        return Connections(available, 0)
    for_grpc = max(available // GRPC_SHARE, 1)
    return Connections(max(available - for_grpc, 1), for_grpc)


def available_connections() -> int:
    """How many connections the limit of open files leaves, after raising it as far as allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    if soft == resource.RLIM_INFINITY:
        soft = MOST_FILES
    return max(soft - max(RESERVED_FILES, soft // 10), soft // 2, 1)
