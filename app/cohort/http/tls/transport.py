"""The transport that a TLS connection is for the protocol that it carries."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

RECORD_BYTES = 16 * 1024
"""What one record of TLS holds at most: https://www.rfc-editor.org/rfc/rfc8446#section-5.1"""

AHEAD_BYTES = 64 * 1024
"""What is encrypted before the caller has read what came before it, about."""

TURN_BYTES = 256 * 1024
"""What is encrypted of a connection's responses in one iteration of the event loop, at most."""

FED_BYTES = 32 * 1024
"""What is decrypted at a time: a `ssl.MemoryBIO` keeps the size that it has had."""


class TlsTransport(asyncio.Transport):
    """Encrypts what a protocol writes and decrypts what comes for it.

    What is written is encrypted as long as about AHEAD_BYTES wait in the transport below, and kept
    as it is until then. `get_write_buffer_size` is all that has not been sent.

    loop: The event loop.
    below: The transport of what is encrypted.
    tls: The connection's state, after its handshake.
    incoming, outgoing: What `tls` reads, and what it writes.
    protocol: Reads and writes here.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        below: asyncio.Transport,
        tls: ssl.SSLObject,
        *,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        protocol: asyncio.Protocol,
    ) -> None:
        super().__init__()
        self._loop = loop
        self._below = below
        self._tls = tls
        self._incoming, self._outgoing = incoming, outgoing
        self._protocol = protocol
        self._waiting: deque[memoryview] = deque()  # to be encrypted
        self._waiting_bytes = 0
        self._reading = True
        self._below_paused = False  # whether the transport below has enough to write
        self._paused = False  # whether the protocol was told so
        self._pump_soon = False
        self._ending = False  # whether nothing more is written, once what waits is
        self._notified = False  # whether the caller was told that nothing more comes
        self._closing = False
        self._extra: dict[str, Any] = {
            "sslcontext": tls.context,
            "ssl_object": tls,
            "peercert": tls.getpeercert() if tls.context.verify_mode else None,
        }
        below.set_write_buffer_limits(AHEAD_BYTES)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """As asyncio's own transports have it."""
        if name in self._extra:
            return self._extra[name]
        return self._below.get_extra_info(name, default)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Who reads and writes here."""
        return self._protocol

    def lost(self, exc: Exception | None) -> None:
        """The transport below has closed."""
        self._ending = self._closing = True
        self._waiting.clear()
        self._waiting_bytes = 0
        self._protocol.connection_lost(exc)

    # -- reading

    def received(self, data: bytes) -> None:
        """Take what came from below."""
        if self._ending:  # the rest of a refused request is discarded as it is
            return
        if len(data) <= FED_BYTES or not self._reading:
            self._incoming.write(data)
            self.read()
            return
        fed, parts = memoryview(data), list[bytes]()
        for start in range(0, len(data), FED_BYTES):
            self._incoming.write(fed[start : start + FED_BYTES])
            if not self._decrypt(parts):
                break
        self._deliver(parts)

    def read(self) -> None:
        """Hand what has come to the protocol."""
        if self._reading and not self._ending:
            parts: list[bytes] = []
            self._decrypt(parts)
            self._deliver(parts)

    def _decrypt(self, parts: list[bytes]) -> bool:
        """Add what the records hold that have come whole; False if none can follow them.

        The last part is empty where the other side has ended the connection.
        """
        incoming, read, pending = self._incoming, self._tls.read, self._tls.pending
        try:
            while incoming.pending or pending():
                part = read(FED_BYTES)
                parts.append(part)
                if not part:
                    return False
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:  # these are no records of this connection
            self._ending = True
            self._below.write(self._outgoing.read())  # an alert says so
            self._below.close()
            return False
        if self._outgoing.pending:  # such as the answer to a change of keys
            self._below.write(self._outgoing.read())
        return True

    def _deliver(self, parts: list[bytes]) -> None:
        if self._ending or not parts:
            return
        if data := parts[0] if len(parts) == 1 else b"".join(parts):
            self._protocol.data_received(data)
        if not parts[-1]:
            self._protocol.eof_received()
            self.close()

    def is_reading(self) -> bool:
        """Whether what comes is handed to the protocol."""
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        """Hand nothing to the protocol until `resume_reading`."""
        self._reading = False
        self._below.pause_reading()

    def resume_reading(self) -> None:
        """Hand what comes to the protocol again."""
        if self._reading or self._closing:
            return
        self._reading = True
        self._below.resume_reading()
        if self._incoming.pending or self._tls.pending():
            self._loop.call_soon(self.read)

    # -- writing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send, at once or when what was written before has been read."""
        if self._ending or self._below.is_closing() or not data:
            return
        if len(data) <= RECORD_BYTES and not self._paused:
            try:
                self._tls.write(data)  # all of it: it fits one record
            except ssl.SSLError:
                self.abort()
                return
            self._below.write(self._outgoing.read())
        else:
            self._waiting.append(memoryview(data))
            self._waiting_bytes += len(data)
            self.pump()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Send one after the other."""
        for data in list_of_data:
            self.write(data)

    def get_write_buffer_size(self) -> int:
        """How many bytes the caller has not read yet, but those that are on their way."""
        return self._waiting_bytes + self._below.get_write_buffer_size()

    def pause_writing(self) -> None:
        """The transport below has enough to write."""
        self._below_paused = True
        self._tell()

    def resume_writing(self) -> None:
        """The transport below has written most of it."""
        self._below_paused = False
        self.pump()

    def pump(self) -> None:
        """Encrypt what waits, as far as the caller reads it."""
        self._pump_soon = False
        below, waiting, left = self._below, self._waiting, TURN_BYTES
        try:
            while waiting and left > 0 and below.get_write_buffer_size() <= AHEAD_BYTES:
                written = self._tls.write(waiting[0][:RECORD_BYTES])
                below.write(self._outgoing.read())
                left -= written
                self._waiting_bytes -= written
                waiting[0] = waiting[0][written:]
                if not waiting[0]:
                    waiting.popleft()
        except ssl.SSLError:
            self.abort()
            return
        if waiting and not self._below_paused and not self._pump_soon:
            self._pump_soon = True
            self._loop.call_soon(self.pump)
        self._tell()
        if self._ending and not waiting:
            self._finish()

    def _tell(self) -> None:
        """Tell the protocol to pause or to go on, where that has changed."""
        paused = self._below_paused or bool(self._waiting)
        if paused == self._paused:
            return
        self._paused = paused
        if self._closing:
            return
        if paused:
            self._protocol.pause_writing()
        else:
            self._protocol.resume_writing()

    # -- the end

    def can_write_eof(self) -> bool:
        """TLS has an end of its own for each direction."""
        return True

    def write_eof(self) -> None:
        """Say that nothing more comes, after what waits; what still arrives is discarded."""
        self._ending = True
        self.pump()

    def is_closing(self) -> bool:
        """Whether the connection ends, now or when all has been sent."""
        return self._closing or self._below.is_closing()

    def close(self) -> None:
        """End the connection when all has been sent; the other side's end is not waited for."""
        if self._closing:
            return
        self._ending = self._closing = True
        self._below.pause_reading()
        self.pump()

    def abort(self) -> None:
        """End the connection now."""
        self._ending = self._closing = True
        self._waiting.clear()
        self._waiting_bytes = 0
        self._below.abort()

    def _finish(self) -> None:
        if self._below.is_closing():
            return
        if not self._notified:
            self._notified = True
            with suppress(ssl.SSLError):  # it wants the other side's end
                self._tls.unwrap()
            self._below.write(self._outgoing.read())
            if not self._closing:
                self._below.write_eof()
        if self._closing:
            self._below.close()
