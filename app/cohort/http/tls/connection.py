"""A TLS connection: its handshake, then its transport."""

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
"""Approximate limit of a handshake, without the server's own work."""

HANDSHAKE_RECORD = 22
"""First byte of a TLS connection."""

PLAINTEXT = body_of(InvalidInput("this port requires HTTPS, but the request was sent without TLS"))
PLAINTEXT_RESPONSE = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(PLAINTEXT), PLAINTEXT)
)


class Crowd(Protocol):
    """The limits of all connections of a port, as in `Hot`."""

    addresses: Addresses
    max_connections: int

    def make_room(self, connections: Collection[Watched]) -> bool:
        """Return True if there is room for the newest connection."""

    def watch(self, connections: Collection[Watched], loop: asyncio.AbstractEventLoop) -> None:
        """Check the connections regularly, as long as there are any."""


class TlsConnection(asyncio.Protocol):
    """A TLS server connection, which gives a protocol the transport of the decrypted data.

    During its handshake the idle sweep checks this object, and it may be closed to make room. Later
    that applies to the protocol.

    transport: The transport of the encrypted data.

    hot: The connections' limits.
    handshakes: State shared by all handshakes.
    connections: All connections.
    context: Returns the TLS context for a new handshake.
    make_protocol: Makes the protocol after the handshake.
    """

    transport: asyncio.Transport
    address: str | bytes = ""
    descriptor = -1
    _loop: asyncio.AbstractEventLoop
    _began = 0.0
    _tls: ssl.SSLObject | None = None
    _stepping = False  # True while a step of the handshake waits for the thread or runs there
    _secured: TlsTransport | None = None  # set after the handshake

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
        """Wait for the first bytes, if there is room for another connection."""
        self.transport = transport
        self.descriptor = transport.get_extra_info("socket").fileno()
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._connections.add(self)
        self.address = address_of(transport.get_extra_info("peername"))
        allowed = self._hot.addresses.enter(self.address)
        self._hot.watch(self._connections, self._loop)
        if not self._hot.make_room(self._connections):
            self.fail(
                "limit", f"the server's limit of {self._hot.max_connections} connections is reached"
            )
        elif not allowed:
            self.fail(
                "limit",
                f"the address has reached its limit of {self._hot.addresses.maximum} connections",
            )

    def connection_lost(self, exc: Exception | None) -> None:
        """End the handshake or the transport, because the lower transport has closed."""
        self._end_handshake()
        if self._secured is not None:
            self._secured.lost(exc)
            self._secured = None  # breaks a reference cycle

    def data_received(self, data: bytes) -> None:
        """Continue the handshake, or pass on the data after it."""
        if self._secured is not None:
            self._secured.received(data)
        elif self._tls is None and data[0] != HANDSHAKE_RECORD:
            self.transport.write(PLAINTEXT_RESPONSE)
            self.fail("plaintext", "the request was sent without TLS")
        else:
            self.transport.pause_reading()  # the thread uses the buffers
            self._incoming.write(data)
            self._stepping = True
            self._handshakes.run(self, self._step).add_done_callback(self._stepped)

    def pause_writing(self) -> None:
        """Pause, because the lower transport's buffer is full."""
        if self._secured is not None:
            self._secured.pause_writing()

    def resume_writing(self) -> None:
        """Resume, because the lower transport's buffer has drained."""
        if self._secured is not None:
            self._secured.resume_writing()

    @property
    def idle_since(self) -> float:
        """Return the start of the handshake, during which the connection may be closed."""
        return self._began

    def close_if_idle(self, now: float, /) -> None:
        """Fail the handshake if the client takes too long."""
        if not self._stepping and now - self._began > TLS_HANDSHAKE_SECONDS:
            self.fail("timeout", f"not finished within {TLS_HANDSHAKE_SECONDS:g} s")

    def shutdown(self) -> None:
        """Fail the handshake, because the server closes its connections."""
        self.fail("limit", "the server is shutting down")

    def fail(self, kind: str, reason: str, /) -> None:
        """Fail the handshake and close the connection."""
        self._end_handshake()
        self._handshakes.note_failure(kind, reason, self.transport.get_extra_info("peername"))
        self.transport.close()  # after a pending alert is sent

    def _step(self) -> ssl.SSLObject:
        """Run a step on the thread. Until then, the connection holds only the received bytes."""
        if self._tls is None:
            self._tls = self._context().wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._tls.do_handshake()
        return self._tls

    def _stepped(self, step: asyncio.Future[ssl.SSLObject]) -> None:
        self._stepping = False
        if step.cancelled():
            return
        error = step.exception()  # always read, or asyncio logs that it was not retrieved
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
        except ValueError as error:  # includes SSLError: a certificate that cannot be read
            self.fail("refused", _reason(error))
            return
        self._end_handshake()
        protocol.connection_made(self._secured)
        self.transport.resume_reading()
        self._secured.read()  # bytes that followed the handshake

    def _end_handshake(self) -> None:
        if self in self._connections:
            self._connections.remove(self)
            self._hot.addresses.leave(self.address)
        self._handshakes.end(self)


def _reason(error: BaseException) -> str:
    """Return OpenSSL's reason."""
    for attribute in ("verify_message", "reason"):
        if text := getattr(error, attribute, None):
            return str(text).replace("_", " ").lower()
    return str(error)
