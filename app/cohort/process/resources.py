"""The resources of the process: connections, memory, and its share of limits of all workers."""

from __future__ import annotations

import asyncio
import resource
from contextlib import suppress
from typing import NamedTuple

from cohort.connections.memory import MemoryBudget
from cohort.session import give_back_arenas, give_back_memory

RESERVED_FILES = 256
"""Open files reserved for models and logs; a tenth of the limit if that is more."""

GRPC_SHARE = 4
"""If gRPC is enabled, a fourth of the connections are for gRPC: each carries many calls."""

MAX_FILES = 1 << 20
"""The limit of open files is raised to at most this number."""


class Connections(NamedTuple):
    """The maximum of connections of each API."""

    http: int
    grpc: int


PROCESS_BYTES = 150 << 20
"""Memory of a process without models and requests, including the inspection of a small model."""


def memory_for_requests(available: int, processes: int) -> int:
    """Return the memory in bytes that requests of one of `processes` may hold: a quarter.

    A request uses up to four times the memory that it holds, for text, arrays and its run. So the
    result is a quarter of the memory that the processes leave, or at least of a quarter of all.
    """
    left = max(available - processes * PROCESS_BYTES, available // 4)
    return left // 4 // processes


IDLE_SECONDS = 10.0
MUCH_BYTES = 64 * 2**20
"""After this idle time, freed memory is returned if requests held more than this."""


async def return_memory(memory: MemoryBudget) -> None:
    """Return memory to the system, repeatedly, once requests that held much have ended."""
    while True:
        await asyncio.sleep(IDLE_SECONDS)
        if not memory.used and memory.take_peak() > MUCH_BYTES:
            await asyncio.to_thread(give_back_arenas)
            await asyncio.to_thread(give_back_memory)


def part_of(limit: int, processes: int) -> int:
    """Return the share of each process in a limit for all processes together, rounded up."""
    return -(-limit // processes)


def share_connections(available: int, *, grpc: bool) -> Connections:
    """Divide connections so that no API can use the other's; with `grpc`, each has at least one."""
    if not grpc:
        return Connections(available, 0)
    for_grpc = max(available // GRPC_SHARE, 1)
    return Connections(max(available - for_grpc, 1), for_grpc)


def available_connections() -> int:
    """Return the connections that the limit of open files allows, after raising the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    if soft == resource.RLIM_INFINITY:
        soft = MAX_FILES
    return max(soft - max(RESERVED_FILES, soft // 10), soft // 2, 1)
