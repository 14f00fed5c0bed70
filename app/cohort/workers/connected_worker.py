"""The duties of a worker apart from serving: takes connections and reports its state."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any

from cohort.operating import Lifecycle
from cohort.workers.link import Link, QuestionHandler
from cohort.workers.membership import Membership
from cohort.workers.merged_metrics import METRICS
from cohort.workers.passing import Intake, Kind
from cohort.workers.siblings import Siblings

REPORT_SECONDS = 0.1
"""Interval of the checks for a changed state to report to the parent."""

CLOSED_SECONDS = 0.005
"""Delay before closed connections are reported, to batch reports."""

LAST_CONNECTION_SECONDS = 5.0
"""Time for the parent to confirm the last connection, once this process stops."""

Serve = Callable[[socket.socket], Coroutine[Any, Any, object]]
"""Serves an accepted connection."""


class OpenConnections(set[Any]):
    """A set of connections that calls `on_close` a short time after connections were removed."""

    on_close: Callable[[], None] | None = None
    _due = False

    def discard(self, connection: Any) -> None:
        super().discard(connection)
        if self.on_close is not None and not self._due:
            self._due = True
            asyncio.get_running_loop().call_later(CLOSED_SECONDS, self._report)

    def _report(self) -> None:
        self._due = False
        if self.on_close is not None:
            self.on_close()


class ConnectedWorker:
    """This process as one of several workers.

    siblings: The other workers.
    connections: The open connections for HTTP; uvicorn must keep them here.
    rpc_connections: The open connections for gRPC; its server must keep them here.

    membership: The parent's information at the start.
    """

    def __init__(self, membership: Membership) -> None:
        self.siblings = Siblings(membership.place, os.getpid())
        self.connections = OpenConnections()
        self.rpc_connections = OpenConnections()
        self._membership = membership
        self._link: Link | None = None
        self._intake: Intake | None = None
        self._serve_rpc: Serve | None = None
        self._rpc_listened = asyncio.Event()
        self._no_more = asyncio.Event()
        self._making: set[asyncio.Task[object]] = set()
        self._unloaded: list[str] = []
        self._introduced = asyncio.Event()
        self._answers: Mapping[str, QuestionHandler] = {}
        self._retire: Callable[[], None] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def introduce(
        self, answers: Mapping[str, QuestionHandler], retire: Callable[[], None]
    ) -> None:
        """Begin to exchange messages with the parent, before any model is loaded.

        answers: The handlers of other workers' questions, by question.
        retire: Called once the parent wants to replace this worker.
        """
        self._answers, self._retire = answers, retire
        link = Link(self._membership.messages, answers, self._take)
        self.siblings.connect(link)
        link.open()
        link.send({"kind": "hello"})
        await self._introduced.wait()
        for model in self._unloaded:
            await answers["unload"]({"model": model})
        self._link = link

    def _take(self, head: Mapping[str, Any]) -> None:
        match head["kind"]:
            case "wanted":
                self._unloaded = head["unloaded"]
                self._introduced.set()
            case "host":
                self.siblings.take_picture(head)
                if any(one["pid"] == os.getpid() and one.get("rpc") for one in head["workers"]):
                    self._rpc_listened.set()
            case "retire":
                self.siblings.retiring = True
                if self._retire is not None:
                    self._retire()

    def accept(self, lifecycle: Lifecycle, serve: Serve) -> None:
        """Take connections, serve each with `serve`, and report `lifecycle` to the parent."""
        loop = asyncio.get_running_loop()

        def begin(connection: socket.socket, kind: Kind) -> None:
            chosen = serve if self._serve_rpc is None or kind is Kind.HTTP else self._serve_rpc
            task = loop.create_task(_served(chosen, connection))
            self._making.add(task)
            task.add_done_callback(self._making.discard)

        intake = Intake(
            self._membership.connections,
            begin,
            lambda: sum(map(len, (self.connections, self.rpc_connections, self._making))),
            self._no_more.set,
        )

        def take() -> None:
            intake.take()
            if intake.ended:
                loop.remove_reader(intake.socket)

        self._intake = intake
        self.connections.on_close = self.rpc_connections.on_close = intake.report
        loop.add_reader(intake.socket, take)
        self._tasks.append(loop.create_task(self._report(lifecycle)))

    @property
    def gets_rpc(self) -> bool:
        """True if the parent also passes gRPC connections; parents of older releases do not."""
        return self._membership.passes_rpc

    async def accept_rpc(self, serve: Serve) -> None:
        """Serve connections for gRPC with `serve`; return once the parent listens for them."""
        self._serve_rpc = serve
        await self._rpc_listened.wait()

    async def _report(self, lifecycle: Lifecycle) -> None:
        sent = None
        while True:
            ready, live = lifecycle.readiness(), lifecycle.liveness()
            state = {
                "kind": "state",
                "ready": ready.ready,
                "reason": ready.reason,
                "live": live.ready,
                "live_reason": live.reason,
                "settled": lifecycle.settled,
                "draining": lifecycle.draining,
                "rpc": self._serve_rpc is not None,
            }
            if state != sent and self._link is not None:
                self._link.send(state)
                sent = state
            await asyncio.sleep(REPORT_SECONDS)

    async def stop_accepting(self) -> None:
        """Wait until the parent has passed the last connection, and all are being served."""
        if self._intake is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_CONNECTION_SECONDS):
                await self._no_more.wait()
        if self._making:
            await asyncio.wait(self._making)

    async def leave(self) -> None:
        """Send the last metrics to the parent, and close the link."""
        for task in self._tasks:
            task.cancel()
        if self._link is not None:
            _, text = await self._answers[METRICS]({})
            self._link.send({"kind": "last"}, text)
            await self._link.close()


async def _served(serve: Serve, connection: socket.socket) -> None:
    try:
        await serve(connection)
    except OSError:  # the client disconnected
        connection.close()
