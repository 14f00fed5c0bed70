"""A connection of ours without a socket, and one of the h2 library as its peer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from math import inf
from typing import Any

import h2.config
import h2.connection
import h2.events

from cohort.connections.memory import MemoryBudget
from cohort.connections.turns import Turns
from cohort.errors import CohortError
from cohort.http2 import CallHeads, ConnectionLimits, Http2Connection, Stream
from cohort.http2.heads import trailers
from tests.waiting import iterations

HEADERS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/echo"),
    (":authority", "cohort"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
]


class Wire(asyncio.Transport):
    """Takes what a connection writes; `full` is what a kernel would hold before it has enough."""

    def __init__(self, connection: Http2Connection, full: float = inf) -> None:
        super().__init__()
        self.written = bytearray()
        self.closed = self.aborted = self.reading_paused = False
        self.full = full
        self._connection = connection
        self._paused = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 4711) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        del high, low

    def get_write_buffer_size(self) -> int:
        return len(self.written)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closed
        self.written += data
        if len(self.written) > self.full and not self._paused:
            self._paused = True
            self._connection.pause_writing()

    def take(self) -> bytes:
        """Return the written bytes and remove them, as if the kernel had sent them."""
        data = bytes(self.written)
        self.written.clear()
        if self._paused:
            self._paused = False
            self._connection.resume_writing()
        return data

    def pause_reading(self) -> None:
        self.reading_paused = True

    def resume_reading(self) -> None:
        self.reading_paused = False

    def is_closing(self) -> bool:
        return self.closed

    def close(self, reason: str = "") -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True


class Echo:
    """Answers each message with itself, and ends well with its caller."""

    most_bytes = 1 << 22

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.left = False
        self.refused: list[CohortError] = []

    @property
    def waits_for_caller(self) -> bool:
        """True until its message is whole."""
        return not self.stream.ended

    def arrived(self) -> None:
        while (message := self.stream.take()) is not None:
            self.stream.send((bytes(message.data),))
        if self.stream.ended and not self.stream.closed:
            code = 3 if self.stream.partial else 0
            self.stream.finish(code)

    def refuse(self, error: CohortError) -> None:
        self.refused.append(error)
        self.stream.finish(8)

    def too_large(self, size: int) -> None:
        self.stream.finish(8, f"{size} bytes")

    def drained(self) -> None:
        pass

    def gone(self) -> None:
        self.left = True

    def tick(self, now: float) -> None:
        pass

    def end_reading(self) -> None:
        pass

    def close(self, reason: str = "") -> None:
        pass


class SmallEcho(Echo):
    """Answers a call's only, small message with itself, and any other call with status 3.

    early: True if it answers before its caller has ended the call.
    """

    early = False

    def arrived(self) -> None:
        if self.early:
            message = self.stream.take()
            small = None if message is None else bytes(message.data)
        else:
            small = self.stream.take_small(1000)
        if small is None:
            self.stream.finish(3)
        else:
            self.stream.respond(small, trailers(0, "", [("size", str(len(small)))]))


class Served:
    """A connection that echoes, and what it has made of its limits; `serve` makes its calls."""

    def __init__(
        self, full: float = inf, room: int = 1, *, serve: Callable[[Stream], Echo] = Echo
    ) -> None:
        self._serve = serve
        self.memory = MemoryBudget(1 << 28)
        self.calls: list[Echo] = []
        self.open = self.connections = 0
        self.room = room
        limits = ConnectionLimits(
            memory=self.memory,
            heads=CallHeads(),
            begin=self._begin,
            ended=self._ended,
            opened=self._opened,
            closed=self._closed,
            idle_seconds=60,
            turns=Turns(between=0.0),
        )
        self.connection = Http2Connection(limits)
        self.wire = Wire(self.connection, full)
        self.connection.connection_made(self.wire)

    def _begin(self, stream: Stream) -> None:
        self.open += 1
        call = self._serve(stream)
        self.calls.append(call)
        stream.call = call

    def _ended(self, stream: Stream) -> None:
        del stream
        self.open -= 1

    def _opened(self, connection: Http2Connection) -> bool:
        del connection
        self.connections += 1
        return self.connections <= self.room

    def _closed(self, connection: Http2Connection) -> None:
        del connection
        self.connections -= 1

    async def feed(self, data: bytes, sizes: Iterable[int] = ()) -> None:
        """Have it read `data`, in pieces of these sizes; the last is what is left."""
        at = 0
        for size in [*sizes, len(data)]:
            while self.wire.reading_paused and not self.wire.closed and not self.wire.written:
                await iterations(1)
            if at < len(data) and not self.wire.closed:
                self.connection.data_received(data[at : at + size])
            at += size
        await iterations(3)

    def lose(self) -> None:
        """Its transport has closed."""
        self.connection.connection_lost(None)


class Caller:
    """A connection of the h2 library, which checks the frames it receives.

    answers: The bytes sent on each stream. `ended`: how each stream ended.
    """

    def __init__(self, served: Served) -> None:
        self.served = served
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self.h2.initiate_connection()
        self.answers: dict[int, bytearray] = {}
        self.ended: dict[int, str] = {}
        self.goaway: h2.events.ConnectionTerminated | None = None

    async def exchange(
        self, sizes: Iterable[int] = (), *, taken: Callable[[int], int] = lambda size: size
    ) -> bool:
        """Send pending bytes and read new ones; return True if there were any.

        taken: Returns how many of `size` bytes of DATA are acknowledged at once.
        """
        sent = self.h2.data_to_send()
        await self.served.feed(sent, sizes)
        came = self.served.wire.take()
        for event in self.h2.receive_data(came):
            self._note(event, taken)
        return bool(sent or came)

    def _note(self, event: h2.events.Event, taken: Callable[[int], int]) -> None:
        if isinstance(event, h2.events.DataReceived):
            self.answers.setdefault(event.stream_id, bytearray()).extend(event.data)
            size = taken(event.flow_controlled_length)
            if size and event.stream_id not in self.ended:
                self.h2.acknowledge_received_data(size, event.stream_id)
        elif isinstance(event, h2.events.TrailersReceived | h2.events.ResponseReceived):
            for name, value in event.headers:
                if name == b"grpc-status":
                    self.ended[event.stream_id] = value.decode()
        elif isinstance(event, h2.events.StreamReset):
            self.ended.setdefault(event.stream_id, f"reset {event.error_code}")
        elif isinstance(event, h2.events.ConnectionTerminated):
            self.goaway = event


def message(data: bytes) -> bytes:
    """A gRPC message."""
    return b"\0" + len(data).to_bytes(4, "big") + data
