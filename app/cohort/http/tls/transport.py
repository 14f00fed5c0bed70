"""The transport of a TLS connection for the protocol inside it."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

RECORD_BYTES = 16 * 1024
"""Maximum size of a TLS record: https://www.rfc-editor.org/rfc/rfc8446#section-5.1"""

AHEAD_BYTES = 64 * 1024
"""Approximate bytes that are encrypted before the client has read earlier ones."""

TURN_BYTES = 256 * 1024
"""Maximum bytes of a connection's responses encrypted in one event-loop iteration."""

FED_BYTES = 32 * 1024
"""Bytes decrypted at a time, because an `ssl.MemoryBIO` never shrinks."""


class TlsTransport(asyncio.Transport):
    """Encrypts the data a protocol writes and decrypts the data it receives.

    Data is encrypted while the lower transport has less than about AHEAD_BYTES waiting, and kept
    unencrypted until then. `get_write_buffer_size` counts all unsent data.

    loop: The event loop.
    below: The lower transport, which carries the encrypted data.
    tls: The connection's state after its handshake.
    incoming, outgoing: The buffers that `tls` reads from and writes to.
    protocol: The protocol that uses this transport.
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
        self._waiting: deque[memoryview] = deque()  # waits to be encrypted
        self._waiting_bytes = 0
        self._reading = True
        self._below_paused = False  # True while the lower transport's buffer is full
        self._paused = False  # True if the protocol was paused
        self._pump_soon = False
        self._ending = False  # True if nothing more is written after the waiting data
        self._notified = False  # True if the close alert was sent
        self._closing = False
        self._extra: dict[str, Any] = {
            "sslcontext": tls.context,
            "ssl_object": tls,
            "peercert": tls.getpeercert() if tls.context.verify_mode else None,
        }
        below.set_write_buffer_limits(AHEAD_BYTES)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return transport information, like asyncio's transports."""
        if name in self._extra:
            return self._extra[name]
        return self._below.get_extra_info(name, default)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol that uses this transport."""
        return self._protocol

    def lost(self, exc: Exception | None) -> None:
        """Close this transport, because the lower one has closed."""
        self._ending = self._closing = True
        self._waiting.clear()
        self._waiting_bytes = 0
        self._protocol.connection_lost(exc)
        del self._protocol  # breaks a reference cycle

    # -- reading

    def received(self, data: bytes) -> None:
        """Process bytes from the lower transport."""
        if self._ending:  # the rest of a refused request is discarded
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
        """Decrypt the received bytes and pass them to the protocol."""
        if self._reading and not self._ending:
            parts: list[bytes] = []
            self._decrypt(parts)
            self._deliver(parts)

    def _decrypt(self, parts: list[bytes]) -> bool:
        """Append the contents of all complete records. Return False if no more can follow.

        The last part is empty if the other side has ended the connection.
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
        except ssl.SSLError:  # not records of this connection
            self._ending = True
            self._below.write(self._outgoing.read())  # the alert
            self._below.close()
            return False
        if self._outgoing.pending:  # for example the answer to a key update
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
        """Return True if received data is passed to the protocol."""
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        """Pass nothing to the protocol until `resume_reading`."""
        self._reading = False
        self._below.pause_reading()

    def resume_reading(self) -> None:
        """Pass received data to the protocol again."""
        if self._reading or self._closing:
            return
        self._reading = True
        self._below.resume_reading()
        if self._incoming.pending or self._tls.pending():
            self._loop.call_soon(self.read)

    # -- writing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send data now, or once earlier data has been read."""
        if self._ending or self._below.is_closing() or not data:
            return
        if len(data) <= RECORD_BYTES and not self._paused:
            try:
                self._tls.write(data)  # all of it: it fits in one record
            except ssl.SSLError:
                self.abort()
                return
            self._below.write(self._outgoing.read())
        else:
            self._waiting.append(memoryview(data))
            self._waiting_bytes += len(data)
            self.pump()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Send each item in order."""
        for data in list_of_data:
            self.write(data)

    def get_write_buffer_size(self) -> int:
        """Return the bytes that are not sent yet."""
        return self._waiting_bytes + self._below.get_write_buffer_size()

    def pause_writing(self) -> None:
        """Pause, because the lower transport's buffer is full."""
        self._below_paused = True
        self._report()

    def resume_writing(self) -> None:
        """Resume, because the lower transport's buffer has drained."""
        self._below_paused = False
        self.pump()

    def pump(self) -> None:
        """Encrypt waiting data as fast as the client reads it."""
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
        self._report()
        if self._ending and not waiting:
            self._finish()

    def _report(self) -> None:
        """Pause or resume the protocol's writing if the state has changed."""
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
        """Return True: TLS can end each direction separately."""
        return True

    def write_eof(self) -> None:
        """Send the end of the data after the waiting data, and discard data that still arrives."""
        self._ending = True
        self.pump()

    def is_closing(self) -> bool:
        """Return True if the connection is closing, now or after all data is sent."""
        return self._closing or self._below.is_closing()

    def close(self) -> None:
        """Close the connection after all data is sent, without waiting for the other side's end."""
        if self._closing:
            return
        self._ending = self._closing = True
        self._below.pause_reading()
        self.pump()

    def abort(self) -> None:
        """Close the connection now."""
        self._ending = self._closing = True
        self._waiting.clear()
        self._waiting_bytes = 0
        self._below.abort()

    def _finish(self) -> None:
        if self._below.is_closing():
            return
        if not self._notified:
            self._notified = True
            with suppress(ssl.SSLError):  # it expects the other side's end
                self._tls.unwrap()
            self._below.write(self._outgoing.read())
            if not self._closing:
                self._below.write_eof()
        if self._closing:
            self._below.close()
