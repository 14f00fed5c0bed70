"""The timeouts of a connection: idle, slow to send, slow to read."""

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
    """Return the bytes of responses in the kernel that the client has not acknowledged.

    The kernel accepts 1 to 2 MB at once, and more when most of it was read. On a slow line that
    takes minutes. Returns 0 if the count is not available.
    """
    connection = transport.get_extra_info("socket")
    answer = bytearray(4)
    try:
        fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, answer)
    except (AttributeError, OSError, ValueError):  # no socket, or a closed one
        return 0
    return int.from_bytes(answer, sys.byteorder)


class WatchedConnection(HttpToolsProtocol):
    """Limits how long a connection stays open, and the memory of its unread responses."""

    cycle: Any  # the last request read: a HotCycle or uvicorn's RequestResponseCycle
    flow: Flow
    certificate: frozenset[str] | None = None
    address: str | bytes = ""
    _front: Any = None  # the request being answered, or read with no earlier one open

    def __init__(self, hot: Hot, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.hot = hot
        self.heads = hot.heads
        self._since = self.loop.time()  # time of the last activity
        self._between = True  # True if the next byte begins a request
        self._in_headers = False
        self._headers_since = 0.0
        self._received = 0  # bytes of bodies
        self._body_pace, self._response_pace = Pace(), Pace()
        self._unsent = hot.plane.memory.hold()  # responses that the kernel has not accepted
        self._unread_then = 0  # unread bytes at the last check

    @abstractmethod
    def refuse(self, error: CohortError) -> None:
        """Refuse the request that is being read, and close the connection."""

    @abstractmethod
    def read_next(self) -> None:
        """Start the next request that was read."""

    @property
    def idle_since(self) -> float | None:
        """Return the time of the last activity, or None while a request is read or answered."""
        return self._since if self._between and self._front is None else None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start watching the connection, or refuse it if there are too many."""
        super().connection_made(transport)
        self.flow = Flow(transport)
        if (names := certificate_names(transport.get_extra_info("peercert"))) is not None:
            self.certificate = names
            self.heads = self.hot.heads_of(names)
        self.address = address_of(self.client)
        allowed = self.hot.addresses.enter(self.address)
        self.hot.watch(self.connections, self.loop)  # type: ignore[arg-type]  # all connections are of this class
        if not self.hot.make_room(self.connections):  # type: ignore[arg-type]
            self.refuse(
                Overloaded(
                    f"the server's limit of {self.hot.max_connections} connections is reached"
                )
            )
        elif not allowed:
            most = self.hot.addresses.maximum
            self.refuse(Overloaded(f"this address has reached its limit of {most} connections"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the memory of unread responses."""
        self._unsent.set(0)
        self.hot.addresses.leave(self.address)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Stop reading and answering requests, because the client does not read its responses."""
        super().pause_writing()
        self.flow.pause_reading()
        self._unsent.set(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Read and answer requests again, because the client has read its responses."""
        super().resume_writing()
        self.flow.resume_reading()
        self._unsent.set(0)
        self.read_next()

    def end_reading(self) -> None:
        """Refuse an incomplete request, because the server is stopping."""
        cycle = self.cycle
        reading = cycle is not None and cycle.more_body and not cycle.response_complete
        if (self._in_headers or reading) and not self.transport.is_closing():
            self.refuse(NotReady("the server is stopping and the request did not arrive in time"))

    def close_if_idle(self, now: float) -> None:
        """Close a connection that is idle, or too slow with headers, a body or reading."""
        front, unsent = self._front, self.transport.get_write_buffer_size()
        unread = unsent + bytes_in_kernel(self.transport) if unsent else 0
        in_progress = front is not None and not front.response_complete and not front.more_body
        if in_progress or unread < self._unread_then:  # or the client reads a response
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
                self.transport.abort()  # the client does not read its last responses
        elif idle > self.hot.keep_alive or (
            self._in_headers and now - self._headers_since > HEADER_SECONDS
        ):
            self.transport.close()
