"""A server of one connection, without a socket, whose data plane replies on the test's command."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from uvicorn import Config
from uvicorn.server import ServerState

from cohort.connections.memory import MemoryBudget
from cohort.errors import CohortError, InvalidInput, Overloaded
from cohort.http.calls import JSON, Encoded, Route
from cohort.http.fast_path import Hot, protocol_factory
from cohort.http.fast_path.protocol import HotProtocol
from cohort.serving import DataPlane, Outputs, Reply, RequestContext, Sticky
from cohort.serving.observing import Observer, RequestCounts
from tests.fakes import make_metrics
from tests.http.wire import Answer, answers, request
from tests.waiting import iterations


class FakeTransport(asyncio.Transport):
    """Keeps written bytes; `unsent` is the number of bytes that the caller has not read."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self._reading = True
        self._closed = self._ended = self._aborted = False
        self.unsent = 0
        self.socket: socket.socket | None = None

    # Methods rather than attributes: mypy assumes that an attribute keeps its last asserted value.

    def reads(self) -> bool:
        return self._reading

    def closes(self) -> bool:
        return self._closed or self._ended

    def aborts(self) -> bool:
        return self._aborted

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True

    def write_eof(self) -> None:
        self._ended = True

    def abort(self) -> None:
        self._aborted = True

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.socket if name == "socket" else default

    @property
    def answers(self) -> list[Answer]:
        return answers(bytes(self.written))


class FakeCall:
    """A call whose response is its request's body, as it is."""

    model = version = label = timeout = None
    beside = 0
    parameters: Mapping[str, object] = {}

    def __init__(self, body: bytes) -> None:
        self.body = body

    def decode_work(self, lease: object) -> int:
        return 0

    def is_large(self, outputs: Outputs) -> bool:
        return False

    def decode(self, lease: object) -> dict[str, Any]:
        if self.body == b"bug":
            raise ZeroDivisionError
        return {"body": np.array(bytearray(self.body), "u1")}

    def encode(self, lease: object, outputs: Outputs) -> Encoded:
        if self.body == b"unwritable":
            raise ZeroDivisionError
        return Encoded(self.body, JSON)


@dataclass
class FakeLease:
    """A request that waits until the test answers it."""

    submitted: list[FakeLease]
    reply: Reply | None = None
    inputs: Any = None
    left: bool = False
    served: Any = None
    closed: list[BaseException | None] = field(default_factory=list)

    def submit(self, arrays: Any, reply: Reply, *, timeout: float | None = None) -> None:
        self.inputs, self.reply = bytes(arrays["body"]), reply
        self.submitted.append(self)

    def check_room(self) -> None: ...

    def leave(self) -> None:
        self.left = True
        self.reply = None

    def close(self, error: BaseException | None = None, hold: object = None) -> None:
        self.closed.append(error)

    def answer(self, error: CohortError | None = None) -> None:
        reply, self.reply = self.reply, None
        assert reply is not None, "it is answered already"
        reply(None if error else [np.zeros(1)], error)


@dataclass
class FakePlane:
    """Accepts every request and answers only on command.

    sticky: The rollout's sticky key; None (the default) without a rollout.
    keys: The keys of requests so far.
    """

    waiting: list[FakeLease] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    error: Exception | None = None
    reading: int = 0
    most_read: int = 3
    coalescer: Any = None  # nothing here is small
    observer: Observer = field(default_factory=lambda: RequestCounts(make_metrics()))
    memory: MemoryBudget = field(default_factory=lambda: MemoryBudget(2**30))
    sticky: Sticky | None = None
    keys: list[str | None] = field(default_factory=list)

    def pick(
        self,
        model: str | None,
        version: str | None = None,
        *,
        label: str | None = None,
        context: RequestContext,
        parameters: Mapping[str, object],
    ) -> FakeLease:
        if self.error is not None:
            raise self.error
        if self.sticky is not None:
            self.keys.append(context.key_of(self.sticky, parameters))
        return FakeLease(self.waiting)

    def limited_to(self, models: frozenset[str] | None) -> FakePlane:
        return self

    def refused(self, model: str | None, error: CohortError) -> None:
        self.refusals.append(error.code)

    def begin_reading(
        self, model: str | None = None, version: str | None = None, priority: int = 0
    ) -> None:
        if self.reading >= self.most_read:
            raise Overloaded("it is full")
        self.reading += 1

    def end_reading(self) -> None:
        self.reading -= 1


async def application(scope: Any, receive: Any, send: Any) -> None:
    """FastAPI's stand-in: reads the body, waits for `scope["state"]["gate"]`, gives it back."""
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            scope["state"]["gone"].append(scope["path"])
            return
        body, more = body + message["body"], message["more_body"]
    if (gate := scope["state"]["gate"]) is not None:
        gone = asyncio.ensure_future(receive())
        await asyncio.wait({gone, gate}, return_when=asyncio.FIRST_COMPLETED)
        if not gate.done():
            scope["state"]["gone"].append(scope["path"])
            return
        gone.cancel()
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class FakeServer:
    """A server of one connection."""

    def __init__(self, *, keep_alive: float = 10.0, max_body: int = 2**20) -> None:
        self.plane = FakePlane()
        self.draining = False
        self.hot = Hot(
            cast("DataPlane", self.plane),
            self,
            matches=[_match],
            max_body=max_body,
            keep_alive=keep_alive,
            max_connections=10_000,
        )
        self.state: dict[str, Any] = {"gate": None, "gone": []}
        self.server_state = ServerState()
        self.config = Config(application, log_config=None, ws="none", lifespan="off")
        self.connect()

    def connect(self) -> None:
        self.transport = FakeTransport()
        self.protocol: HotProtocol = protocol_factory(self.hot)(
            config=self.config,
            server_state=self.server_state,
            app_state=self.state,
            _loop=asyncio.get_running_loop(),
        )
        self.protocol.connection_made(self.transport)

    def send(self, *parts: bytes) -> None:
        for part in parts:
            self.protocol.data_received(part)

    def lose(self) -> None:
        self.transport.close()
        self.protocol.connection_lost(None)

    def sweep(self, after: float) -> None:
        """Run the sweep as of `after` seconds from now."""
        self.protocol.close_if_idle(asyncio.get_running_loop().time() + after)

    async def answer_all(self) -> None:
        """Answer in turn until no request waits."""
        while True:
            await iterations()
            open_ones = [lease for lease in self.plane.waiting if lease.reply is not None]
            if not open_ones:
                return
            for lease in open_ones:
                lease.answer()


def _match(path: str, query: Mapping[str, str]) -> Route | None:
    return Route(None, lambda headers: read) if path == "/hot" else None


def read(body: bytes) -> Any:
    if body.rstrip() == b"bad":
        raise InvalidInput("it is bad")
    return FakeCall(body)


def hot(body: bytes = b"1", *headers: str) -> bytes:
    return request("/hot", body, *headers)


def asgi(body: bytes = b"a", *headers: str) -> bytes:
    return request("/asgi", body, *headers)
