"""One TLS connection: its handshake, and then its transport."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Collection
from typing import Protocol

from cohort.connections.address_counts import Addresses, address_of
from cohort.errors import InvalidInput
from cohort.http.errors import body_of
from cohort.http.fast_path.shared import Watched
from cohort.http.tls.handshakes import Handshakes
from cohort.http.tls.transport import TlsTransport

TLS_HANDSHAKE_SECONDS = 10.0
"""How long a handshake may take, about; what the server takes for it not included."""

HANDSHAKE_RECORD = 22
"""The first byte of TLS."""

PLAINTEXT = body_of(InvalidInput("this port speaks HTTPS, and the request came without TLS"))
PLAINTEXT_RESPONSE = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(PLAINTEXT), PLAINTEXT)
)


class Crowd(Protocol):
    """The limits of all connections of a port, as `Hot` has them."""

    addresses: Addresses
    max_connections: int

    def make_room(self, connections: Collection[Watched]) -> bool:
        """Whether there is room for the newest of them."""

    def watch(self, connections: Collection[Watched], loop: asyncio.AbstractEventLoop) -> None:
        """Look at them now and then, while there are any."""


class TlsConnection(asyncio.Protocol):
    """Speaks TLS on a transport, and gives a protocol a transport of what is in it.

    Until its handshake is over it is one of the connections that the idle sweep looks at, and that
    close where there are too many; then the protocol is.

    transport: The transport.

    hot: The connections' limits.
    handshakes: What their handshakes share.
    connections: All connections.
    context: Returns what a handshake that begins now uses.
    make_protocol: Makes the protocol, once the handshake is over.
    """

    transport: asyncio.Transport
    address: str | bytes = ""
    descriptor = -1
    _loop: asyncio.AbstractEventLoop
    _began = 0.0
    _tls: ssl.SSLObject | None = None
    _stepping = False  # whether a step of the handshake waits for the thread, or is done there
    _secured: TlsTransport | None = None  # once the handshake is over

    def __init__(
        self,
        hot: Crowd,
        handshakes: Handshakes,
        *,
        connections: set[Watched],
        context: Callable[[], ssl.SSLContext],
        make_protocol: Callable[[], asyncio.Protocol],
    ) -> None:
        self._hot = hot
        self._handshakes = handshakes
        self._connections = connections
        self._context = context
        self._make_protocol = make_protocol
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first bytes, if there is room for one more connection."""
        self.transport = transport
        self.descriptor = transport.get_extra_info("socket").fileno()
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._connections.add(self)
        self.address = address_of(transport.get_extra_info("peername"))
        allowed = self._hot.addresses.enter(self.address)
        self._hot.watch(self._connections, self._loop)
        if not self._hot.make_room(self._connections):
            self.fail("limit", f"the server has {self._hot.max_connections} connections")
        elif not allowed:
            self.fail("limit", f"the address has {self._hot.addresses.maximum} connections")

    def connection_lost(self, exc: Exception | None) -> None:
        """The transport below has closed."""
        self._end_handshake()
        if self._secured is not None:
            self._secured.lost(exc)
            self._secured = None  # a reference cycle

    def data_received(self, data: bytes) -> None:
        """Go on with the handshake, or with what comes after it."""
        if self._secured is not None:
            self._secured.received(data)
        elif self._tls is None and data[0] != HANDSHAKE_RECORD:
            self.transport.write(PLAINTEXT_RESPONSE)
            self.fail("plaintext", "the request came without TLS")
        else:
            self.transport.pause_reading()  # the thread has the buffers
            self._incoming.write(data)
            self._stepping = True
            self._handshakes.run(self, self._step).add_done_callback(self._stepped)

    def pause_writing(self) -> None:
        """The transport below has enough to write."""
        if self._secured is not None:
            self._secured.pause_writing()

    def resume_writing(self) -> None:
        """The transport below has written most of it."""
        if self._secured is not None:
            self._secured.resume_writing()

    @property
    def idle_since(self) -> float:
        """When its handshake began: until it is over, the connection may be closed for others."""
        return self._began

    def close_if_idle(self, now: float, /) -> None:
        """Give the handshake up where its caller takes too long."""
        if not self._stepping and now - self._began > TLS_HANDSHAKE_SECONDS:
            self.fail("timeout", f"not over within {TLS_HANDSHAKE_SECONDS:g} s")

    def shutdown(self) -> None:
        """Give the handshake up: the server closes its connections."""
        self.fail("limit", "the server is shutting down")

    def fail(self, kind: str, reason: str, /) -> None:
        """Give the handshake up."""
        self._end_handshake()
        self._handshakes.note_failure(kind, reason, self.transport.get_extra_info("peername"))
        self.transport.close()  # once an alert has been sent

    def _step(self) -> ssl.SSLObject:
        """On the thread: until then, the connection holds little more than what was sent."""
        if self._tls is None:
            self._tls = self._context().wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._tls.do_handshake()
        return self._tls

    def _stepped(self, step: asyncio.Future[ssl.SSLObject]) -> None:
        self._stepping = False
        if step.cancelled():
            return
        error = step.exception()  # looked at in any case, or the loop says that nobody did
        if self.transport.is_closing():
            return
        if isinstance(error, ConnectionResetError):
            self.transport.abort()
            return
        self.transport.write(self._outgoing.read())
        if error is None:
            self._establish(step.result())
        elif isinstance(error, ssl.SSLWantReadError):
            self.transport.resume_reading()
            self._handshakes.wait(self)
        else:
            self.fail("refused", _reason(error))

    def _establish(self, tls: ssl.SSLObject) -> None:
        protocol = self._make_protocol()
        try:
            self._secured = TlsTransport(
                self._loop,
                self.transport,
                tls,
                incoming=self._incoming,
                outgoing=self._outgoing,
                protocol=protocol,
            )
        except ValueError as error:  # SSLError is one, too: a certificate that cannot be read
            self.fail("refused", _reason(error))
            return
        self._end_handshake()
        protocol.connection_made(self._secured)
        self.transport.resume_reading()
        self._secured.read()  # what came behind the handshake

    def _end_handshake(self) -> None:
        if self in self._connections:
            self._connections.remove(self)
            self._hot.addresses.leave(self.address)
        self._handshakes.end(self)


def _reason(error: BaseException) -> str:
    """What OpenSSL says, in its own words."""
    for attribute in ("verify_message", "reason"):
        if said := getattr(error, attribute, None):
            return str(said).replace("_", " ").lower()
    return str(error)
