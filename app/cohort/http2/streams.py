"""One stream of a connection: received and sent messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import monotonic
from typing import Protocol

from cohort.connections.memory import SMALL_BYTES, MemoryBudget, MemoryHold
from cohort.errors import Overloaded
from cohort.http2.frames import (
    DATA_FRAME,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    MAX_WINDOW,
    ErrorCode,
    frame,
    frame_head,
    rst_stream,
    window_update,
)
from cohort.http2.heads import OK_TRAILERS, RESPONSE_HEADERS, StreamHead, trailers
from cohort.http2.outgoing import Outgoing
from cohort.http2.send_queue import Part, SendQueue
from cohort.http2.serving import SentMessage, ServedStream

STREAM_WINDOW = 1 << 20
"""Bytes that a stream may receive before the call has taken them."""

PREFIX_BYTES = 5
"""Bytes before each message: the compressed flag and its length."""

HELD_STEP = 1 << 16
"""Step in bytes in which the budget is updated for received data."""

_HEADERS_BEGIN = frame_head(len(RESPONSE_HEADERS), HEADERS, END_HEADERS, 0)[:5]


def _trailers_begin(block: bytes) -> bytes:
    return frame_head(len(block), HEADERS, END_HEADERS | END_STREAM, 0)[:5]


_OK_BEGIN = _trailers_begin(OK_TRAILERS)


class Carrier(Protocol):
    """The connection of a stream.

    out: Its sending side.
    peer: The other side's address in gRPC's form.
    certificate: Its client certificate in DER, or None.
    memory: The budget for the data of its streams.
    streams: The open streams by number.
    """

    out: Outgoing
    peer: str
    certificate: bytes | None
    memory: MemoryBudget
    streams: dict[int, Stream]

    def forget(self, stream: Stream) -> None:
        """Remove a stream that has ended."""

    def count_useless(self, count: int = 1) -> None:
        """Count a useless call. Raises ConnectionFault at the limit."""


class Stream:
    """A stream.

    number: Its number.
    head: Its headers.
    deadline: Its deadline on the monotonic clock, or None.
    connection: Its connection.
    call: Its handler.
    ended: True if the client sends no more.
    closed: True if the stream has ended on both sides.
    received: Bytes received so far.
    head_held: Bytes of its head, if they are counted.
    """

    __slots__ = (
        "_buffer", "_finishing", "_headed", "_held", "_out", "_out_held", "_receive_window",
        "_reported", "call", "closed", "connection", "deadline", "ended", "head", "head_held",
        "number", "received", "send_window",
    )  # fmt: skip

    def __init__(
        self,
        connection: Carrier,
        number: int,
        head: StreamHead,
        *,
        ended: bool,
    ) -> None:
        self.connection = connection
        self.number = number
        self.head = head
        self.deadline = None if head.timeout is None else monotonic() + head.timeout
        self.call: ServedStream | None = None
        self.ended = ended
        self.closed = False
        self.received = self.head_held = 0
        self.send_window = connection.out.stream_window
        self._receive_window = STREAM_WINDOW
        self._buffer: bytes | bytearray = b""
        self._reported = False  # True if the next message was reported as too large
        self._held: MemoryHold | None = None  # memory of the buffer
        self._out = SendQueue()
        self._out_held: MemoryHold | None = None
        self._headed = False  # True if the response's headers were sent
        self._finishing: bytes | None = None  # trailers that wait for messages

    # -- receiving

    def begin_data(self, length: int) -> None:
        """Count a DATA frame of `length` bytes for flow control."""
        if self.ended:
            self.reset(ErrorCode.STREAM_CLOSED)
            return
        self._receive_window -= length
        if self._receive_window < 0:
            self.reset(ErrorCode.FLOW_CONTROL_ERROR)

    def take_data(self, part: Part, *, end: bool) -> None:
        """Process a part of the data."""
        self.ended = end
        if self._finishing is not None:
            return  # the call was answered
        self.received += len(part)
        if end and self.head.call.length is not None and not self._has_its_length():
            return
        if isinstance(self._buffer, bytearray):
            self._buffer += part
        elif self._buffer or not isinstance(part, bytes):
            self._buffer = bytearray(self._buffer)
            self._buffer += part
        else:
            self._buffer = part
        whole = end or self._length_of_next() is not None
        size, call = len(self._buffer), self.call
        if call is None or ((size > SMALL_BYTES or not whole) and not self._hold(size)):
            return
        if whole:
            call.arrived()
        if not end and not self.closed:
            self._let_send()

    def end(self) -> None:
        """Record that the client sends no more."""
        self.ended = True
        if self.call is not None and self._has_its_length():
            self.call.arrived()

    def _has_its_length(self) -> bool:
        """Return True if the announced number of bytes arrived, otherwise reset the stream."""
        if self.head.call.length in (None, self.received):
            return True
        self.reset(ErrorCode.PROTOCOL_ERROR)
        return False

    def take(self) -> SentMessage | None:
        """Return the next message if it is complete, or None."""
        length = self._length_of_next()
        if length is None:
            return None
        buffer, end = self._buffer, PREFIX_BYTES + length
        compressed = buffer[0] != 0
        message: bytes | bytearray
        if len(buffer) == end and isinstance(buffer, bytearray) and end > SMALL_BYTES:
            del buffer[:PREFIX_BYTES]  # moves only the start of the buffer
            message, self._buffer = buffer, b""
        else:
            with memoryview(buffer) as view:
                message = bytes(view[PREFIX_BYTES:end])
            if len(buffer) == end:
                self._buffer = b""
            elif isinstance(buffer, bytearray):
                del buffer[:end]
            else:
                self._buffer = bytearray(memoryview(buffer)[end:])
        if self._held is not None:
            self._held.set(size if (size := len(self._buffer)) > SMALL_BYTES else 0)
        if not self.ended:
            self._let_send()
        return SentMessage(message, compressed)

    def take_small(self, most: int) -> bytes | None:
        """Return a call's only message if it is uncompressed and has at most `most` bytes."""
        buffer = self._buffer
        size = len(buffer) - PREFIX_BYTES
        if (
            not 0 <= size <= most
            or not self.ended
            or buffer[0]
            or int.from_bytes(buffer[1:PREFIX_BYTES], "big") != size
        ):
            return None
        self._buffer = b""
        return bytes(buffer[PREFIX_BYTES:])

    def put_back(self, message: bytes) -> None:
        """Make the last taken message, which was uncompressed, the next one again."""
        self._buffer = b"\0%b%b%b" % (len(message).to_bytes(4, "big"), message, bytes(self._buffer))

    @property
    def has_more(self) -> bool:
        """Return True if more data arrived after the message that was taken."""
        return bool(self._buffer)

    @property
    def partial(self) -> bool:
        """Return True if the next message is incomplete."""
        return bool(self._buffer) and self._length_of_next() is None

    def _length_of_next(self) -> int | None:
        """Return the length of the next message, or None unless it is complete."""
        buffer = self._buffer
        if len(buffer) < PREFIX_BYTES:
            return None
        length = int.from_bytes(buffer[1:PREFIX_BYTES], "big")
        if self.call is not None and length > self.call.most_bytes:
            if not self._reported:
                self._reported = True
                self.call.too_large(length)
            return None
        return length if len(buffer) >= PREFIX_BYTES + length else None

    def _let_send(self) -> None:
        """Widen the receive window if the next message needs it."""
        if self._receive_window < STREAM_WINDOW // 2 and not (self.closed or self._reported):
            buffer = self._buffer
            if len(buffer) >= PREFIX_BYTES:
                missing = int.from_bytes(buffer[1:PREFIX_BYTES], "big") + PREFIX_BYTES - len(buffer)
                if missing <= self._receive_window:
                    return
            self.connection.out.write(
                window_update(self.number, STREAM_WINDOW - self._receive_window)
            )
            self._receive_window = STREAM_WINDOW

    def _hold(self, size: int) -> bool:
        held = self._held
        if held is None:
            held = self._held = self.connection.memory.hold()
        if size <= held.size:
            return True
        try:
            held.add_up_to(size + HELD_STEP if size > SMALL_BYTES else SMALL_BYTES)
        except Overloaded as error:
            if self.call is not None:
                self.call.refuse(error)
            return False
        return True

    def widen(self, more: int) -> None:
        """Change the send window by `more`, which may be negative."""
        self.send_window += more
        if self.send_window > MAX_WINDOW:
            self.reset(ErrorCode.FLOW_CONTROL_ERROR)
        elif self._out.size:
            self.connection.out.wait_for_turn(self)

    # -- sending

    @property
    def waits(self) -> int:
        """Return the number of bytes that wait to be sent."""
        return self._out.size

    def respond(self, message: bytes, block: bytes = OK_TRAILERS) -> None:
        """Send the only message of a call and end it with success. `block` has the trailers."""
        out, size = self.connection.out, len(message) + PREFIX_BYTES
        if (
            self._headed
            or not self.ended
            or size > self.send_window
            or size > out.window
            or size > out.frame_size
            or out.busy
        ):
            self.answer((message,), block)
            return
        out.window -= size
        if len(self.connection.streams) > 1:
            out.gather()
        number = self.number.to_bytes(4, "big")
        out.write(
            b"%b%b%b%b\0\0%b\0%b%b%b%b%b"
            % (
                _HEADERS_BEGIN,
                number,
                RESPONSE_HEADERS,
                size.to_bytes(3, "big"),
                number,
                len(message).to_bytes(4, "big"),
                message,
                _OK_BEGIN if block is OK_TRAILERS else _trailers_begin(block),
                number,
                block,
            )
        )
        self._close()

    def answer(self, parts: Sequence[Part], block: bytes = OK_TRAILERS) -> None:
        """Like `respond`, for a message of any size in parts. Large parts are not copied."""
        if not self.closed and self._finishing is None:
            self._finishing = block  # sent after the last part
            self.send(parts)
            if not self._out.size and not self.closed:
                self._send_trailers(block)

    def send(self, parts: Sequence[Part]) -> None:
        """Send a message as flow control allows. `call.drained` is called after the last byte."""
        if self.closed:
            return
        out, size = self.connection.out, sum(map(len, parts)) + PREFIX_BYTES
        prefix = b"\0" + (size - PREFIX_BYTES).to_bytes(4, "big")
        if size > SMALL_BYTES or len(self.connection.streams) > 1:
            out.gather()
        self._send_headers()
        if (
            not self._out.size
            and size <= self.send_window
            and size <= out.window
            and size <= out.frame_size
            and size <= SMALL_BYTES
            and not out.busy
        ):
            self.send_window -= size
            out.window -= size
            head = frame_head(size, DATA_FRAME, 0, self.number)
            out.write(b"".join((head, prefix, *parts)))
            return
        self._out.add((prefix, *parts))
        if self._out.size > SMALL_BYTES:
            if self._out_held is None:
                self._out_held = self.connection.memory.hold()
            self._out_held.set(self._out.size)
        out.wait(self)

    def finish(
        self, code: int, details: str = "", metadata: Iterable[tuple[str, str]] = ()
    ) -> None:
        """End the call with a status after the waiting data."""
        if self.closed or self._finishing is not None:
            return
        self._finishing = trailers(code, details, metadata, only=not self._headed)
        if not self._out.size:
            self._send_trailers(self._finishing)

    def reset(self, code: ErrorCode) -> None:
        """Reset the stream without a status."""
        if not self.closed:
            self.connection.out.write(rst_stream(self.number, code))
            self.lost()

    def lost(self) -> None:
        """End the stream: it was reset, or its connection was lost."""
        if self.closed:
            return
        call = self.call
        self._close()
        if call is not None:
            call.gone()

    def send_some(self, most: int) -> int:
        """Send a frame of at most `most` waiting bytes, and return its size."""
        out = self.connection.out
        size = min(self._out.size, self.send_window, out.window, out.frame_size, most)
        if size <= 0:
            return 0
        self.send_window -= size
        out.window -= size
        out.write(frame_head(size, DATA_FRAME, 0, self.number))
        for part in self._out.take(size):
            out.write(part)
        if not self._out.size and not self.closed:
            if self._out_held is not None:
                self._out_held.set(0)
            if self._finishing is not None:
                self._send_trailers(self._finishing)
            if self.call is not None:
                self.call.drained()
        return size

    def _send_headers(self) -> None:
        if not self._headed:
            self._headed = True
            head = frame(HEADERS, END_HEADERS, self.number, RESPONSE_HEADERS)
            self.connection.out.write(head)

    def _send_trailers(self, block: bytes) -> None:
        number = self.number
        sent = frame(HEADERS, END_HEADERS | END_STREAM, number, block)
        if not self.ended:  # the client need not send the rest
            sent += rst_stream(number, ErrorCode.NO_ERROR)
        self.connection.out.write(sent)
        self._close()

    def _forget_out(self) -> None:
        self._out.clear()
        if self._out_held is not None:
            self._out_held.set(0)

    def _close(self) -> None:
        self.closed = True
        self.call = None
        self._buffer = b""
        if self._held is not None:
            self._held.set(0)
        self._forget_out()
        self.connection.forget(self)
