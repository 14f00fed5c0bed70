"""Spread connections over processes: by a shared listener, SO_REUSEPORT, and passed sockets.

`python -m benchmarks.spreading` starts bare servers, opens keep-alive connections, all at once and
one after the other, and counts who has how many. It decided docs/contributing/decisions/0041.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress

import uvloop

BACKLOG = 2048
WAYS = ("shared", "reuseport", "passed")


class Named(asyncio.Protocol):
    """Answers every request with the id of its process."""

    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # uvloop's is no asyncio.Transport

    def data_received(self, data: bytes) -> None:
        del data
        self.transport.write(b"%08d" % os.getpid())


def bound(port: int, *, reuse: bool) -> socket.socket:
    """Return a listener on the loopback address."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if reuse:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener


async def accept_all(listener: socket.socket) -> None:
    """Serve what the listener gives."""
    server = await asyncio.get_running_loop().create_server(Named, sock=listener)
    await server.serve_forever()


async def take_all(channel: socket.socket) -> None:
    """Serve what is passed on."""
    loop = asyncio.get_running_loop()
    channel.setblocking(False)
    tasks: set[asyncio.Task[object]] = set()

    def take() -> None:
        with suppress(BlockingIOError):
            while True:
                data, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
                if not data:
                    loop.stop()
                    return
                connection = socket.socket(fileno=descriptors[0])
                connection.setblocking(False)
                task = loop.create_task(loop.connect_accepted_socket(Named, connection))
                tasks.add(task)
                task.add_done_callback(tasks.discard)

    loop.add_reader(channel, take)
    await asyncio.Event().wait()


def pass_on(listener: socket.socket, channels: list[socket.socket]) -> None:
    """Accept, and give each connection to the next process: without closings that is the least."""
    listener.setblocking(True)
    given = 0
    while True:
        connection, _ = listener.accept()
        socket.send_fds(channels[given % len(channels)], [b"c"], [connection.fileno()])
        connection.close()
        given += 1


def child(work: Callable[[], None]) -> int:
    """Run `work` in a separate process."""
    if pid := os.fork():
        return pid
    with suppress(BaseException):
        work()
    os._exit(0)


def start(way: str, processes: int) -> tuple[int, list[int]]:
    """Start a number of servers; return the port and the processes to kill."""
    first = bound(0, reuse=way == "reuseport")
    port = int(first.getsockname()[1])
    if way == "shared":
        return port, [child(lambda: uvloop.run(accept_all(first))) for _ in range(processes)]
    if way == "reuseport":
        listeners = [first, *(bound(port, reuse=True) for _ in range(processes - 1))]
        pids = [child(lambda one=one: uvloop.run(accept_all(one))) for one in listeners]  # type: ignore[misc]
        for one in listeners:
            one.close()
        return port, pids
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(processes)]
    pids = [child(lambda far=far: uvloop.run(take_all(far))) for _, far in pairs]  # type: ignore[misc]
    pids.append(child(lambda: pass_on(first, [near for near, _ in pairs])))
    return port, pids


async def count(port: int, connections: int, *, at_once: bool) -> dict[int, int]:
    """Open connections, ask each twice, and say which process has how many."""

    async def one() -> tuple[asyncio.StreamWriter, int]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(2):
            writer.write(b"?")
            name = int(await reader.readexactly(8))
        return writer, name

    if at_once:
        found = await asyncio.gather(*(one() for _ in range(connections)))
    else:
        found = [await one() for _ in range(connections)]
    seen: dict[int, int] = {}
    for writer, name in found:
        writer.close()
        seen[name] = seen.get(name, 0) + 1
    return seen


async def open_and_close(port: int, seconds: float) -> float:
    """Connections per second that are opened, asked once and closed, sixteen at a time."""
    done, until = 0, time.monotonic() + seconds

    async def one() -> None:
        nonlocal done
        while time.monotonic() < until:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"?")
            await reader.readexactly(8)
            writer.close()
            done += 1

    await asyncio.gather(*(one() for _ in range(16)))
    return done / seconds


def cpu_of(pids: list[int]) -> list[float]:
    """Return the CPU seconds of processes so far."""
    ticks = os.sysconf("SC_CLK_TCK")
    found = []
    for pid in pids:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:  # noqa: PTH123
            fields = file.read().rpartition(")")[2].split()
        found.append((int(fields[11]) + int(fields[12])) / ticks)
    return found


def main() -> None:
    """Try all ways."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    )
    for way in WAYS:
        port, pids = start(way, options.processes)
        try:
            for connections in (6, 64):
                for at_once in (True, False):
                    rounds = []
                    for _ in range(options.rounds):
                        seen = uvloop.run(count(port, connections, at_once=at_once))
                        most = sorted(seen.values(), reverse=True)
                        rounds.append(
                            "/".join(map(str, most + [0] * (options.processes - len(most))))
                        )
                    how = "at once" if at_once else "one by one"
                    print(f"{way:10} {connections:3} {how:10}  {'  '.join(rounds)}")
            before = cpu_of(pids)
            rate = uvloop.run(open_and_close(port, 3.0))
            used = [b - a for a, b in zip(before, cpu_of(pids), strict=True)]
            each = "  ".join(f"{one / rate / 3.0 * 1e6:.0f}" for one in used)
            print(f"{way:10} opened and closed: {rate:,.0f}/s; CPU by process, µs each: {each}")
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
