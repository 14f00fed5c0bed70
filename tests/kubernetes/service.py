"""The address of a Service, which leads each new connection to one of its pods, as nodes do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from tests.kubernetes.cluster import Cluster


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on what one side sends until it ends."""
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def service(cluster: Cluster, port: str) -> AsyncIterator[str]:
    """Listen for a port of the Service, by its name; gives host and port."""

    async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pod = cluster.choose()
        try:
            there = await asyncio.open_connection(pod.address, pod.port(port))
        except OSError:
            writer.close()
            return
        await asyncio.gather(copy(reader, there[1]), copy(there[0], writer))

    listening = await asyncio.start_server(lead, "127.0.0.1", 0)
    async with listening:
        host, number = listening.sockets[0].getsockname()
        yield f"{host}:{number}"
