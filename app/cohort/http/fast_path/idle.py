"""A connection as the sweep sees it: idle, or slow to send and to read."""

from __future__ import annotations

import asyncio
import fcntl
import sys
import termios
from abc import abstractmethod
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from cohort.connections.address_counts import address_of
from cohort.connections.body_pace import BODY_TOO_SLOW, Pace
from cohort.errors import CohortError, InvalidInput, NotReady, Overloaded
from cohort.http.credentials import certificate_names
from cohort.http.fast_path.reading import HEADER_SECONDS
from cohort.http.fast_path.shared import Flow, Hot


def bytes_in_kernel(transport: asyncio.Transport) -> int:
    """What the kernel has of a connection's responses that the caller has not acknowledged.

    It takes a megabyte or two at once and the next when most of that was read, which a caller on a
    slow line does in minutes. 0 where it does not tell.
    """
    connection = transport.get_extra_info("socket")
    answer = bytearray(4)
    try:
        fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, answer)
    except (AttributeError, OSError, ValueError):  # no socket, or one that has closed
        return 0
    return int.from_bytes(answer, sys.byteorder)


class WatchedConnection(HttpToolsProtocol):
    """What bounds how long a connection is kept, and what its unread responses hold in memory."""

    cycle: Any  # the request read last: a HotCycle, or a RequestResponseCycle of uvicorn's
    flow: Flow
    certificate: frozenset[str] | None = None
    address: str | bytes = ""
    _front: Any = None  # the request being answered, or read with no earlier one open

    def __init__(self, hot: Hot, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.hot = hot
        self.heads = hot.heads
        self._since = self.loop.time()  # when the connection last did something
        self._between = True  # whether the next byte begins a request
        self._in_headers = False
        self._headers_since = 0.0
        self._received = 0  # bytes of bodies
        self._body_pace, self._response_pace = Pace(), Pace()
        self._unsent = hot.plane.memory.hold()  # responses that the kernel has not taken
        self._unread_then = 0  # bytes of them that the caller had not read at the last look

    @abstractmethod
    def refuse(self, error: CohortError) -> None:
        """Refuse what is being read, and close the connection."""

    @abstractmethod
    def read_next(self) -> None:
        """Turn to the next request that was read."""

    @property
    def idle_since(self) -> float | None:
        """When it last did something; None while a request is read or answered on it."""
        return self._since if self._between and self._front is None else None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to watch the connection, or refuse it where there are too many."""
        super().connection_made(transport)
        self.flow = Flow(transport)
        if (names := certificate_names(transport.get_extra_info("peercert"))) is not None:
            self.certificate = names
            self.heads = self.hot.heads_of(names)
        self.address = address_of(self.client)
        allowed = self.hot.addresses.enter(self.address)
        self.hot.watch(self.connections, self.loop)  # type: ignore[arg-type]  # all are ours
        if not self.hot.make_room(self.connections):  # type: ignore[arg-type]
            self.refuse(Overloaded(f"the server has {self.hot.max_connections} connections"))
        elif not allowed:
            most = self.hot.addresses.maximum
            self.refuse(Overloaded(f"this address has the {most} connections that it may have"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Give back what unread responses held."""
        self._unsent.set(0)
        self.hot.addresses.leave(self.address)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The caller does not read its responses: read and answer no more of its requests."""
        super().pause_writing()
        self.flow.pause_reading()
        self._unsent.set(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Read and answer again: the caller has read its responses."""
        super().resume_writing()
        self.flow.resume_reading()
        self._unsent.set(0)
        self.read_next()

    def end_reading(self) -> None:
        """Refuse a request that is not whole: the server stops, and waits for no more of it."""
        cycle = self.cycle
        reading = cycle is not None and cycle.more_body and not cycle.response_complete
        if (self._in_headers or reading) and not self.transport.is_closing():
            self.refuse(NotReady("the server is stopping, and the request was not whole in time"))

    def close_if_idle(self, now: float) -> None:
        """Close a connection that is idle, or whose headers, body or reading take too long."""
        front, unsent = self._front, self.transport.get_write_buffer_size()
        unread = unsent + bytes_in_kernel(self.transport) if unsent else 0
        in_progress = front is not None and not front.response_complete and not front.more_body
        if in_progress or unread < self._unread_then:  # or the caller reads a response
            self._since = self._headers_since = now
        self._unsent.set(unsent)
        self._unread_then = unread
        if not unsent:
            self._response_pace.rest()
        elif self._response_pace.is_slow(now, -unread):
            self.transport.abort()
            return
        if self.cycle is None or not self.cycle.more_body or self.cycle.response_complete:
            self._body_pace.rest()
        elif not self.flow.read_paused and self._body_pace.is_slow(now, self._received):
            self.refuse(InvalidInput(BODY_TOO_SLOW))
            return
        idle = now - self._since
        if self.transport.is_closing():
            if idle > 2 * self.hot.keep_alive:
                self.transport.abort()  # the caller does not read its last responses
        elif idle > self.hot.keep_alive or (
            self._in_headers and now - self._headers_since > HEADER_SECONDS
        ):
            self.transport.close()
