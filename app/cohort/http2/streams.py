"""One stream of a connection: messages that arrive, messages that are sent."""

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
"""Bytes that a stream may receive ahead of what a call has taken."""

PREFIX_BYTES = 5
"""Before each message: whether it is compressed, and its length."""

HELD_STEP = 1 << 16
"""The budget is told of what arrives in steps of so many bytes."""

_HEADERS_BEGIN = frame_head(len(RESPONSE_HEADERS), HEADERS, END_HEADERS, 0)[:5]


def _trailers_begin(block: bytes) -> bytes:
    return frame_head(len(block), HEADERS, END_HEADERS | END_STREAM, 0)[:5]


_OK_BEGIN = _trailers_begin(OK_TRAILERS)


class Carrier(Protocol):
    """A connection, as its streams see it.

    out: What it sends.
    peer: The other side's address, as gRPC writes it.
    certificate: Its client certificate in DER; None: it has none.
    memory: The budget for what its streams hold.
    streams: Those that are open, by their numbers.
    """

    out: Outgoing
    peer: str
    certificate: bytes | None
    memory: MemoryBudget
    streams: dict[int, Stream]

    def forget(self, stream: Stream) -> None:
        """A stream is over."""

    def count_useless(self, count: int = 1) -> None:
        """Count a call that brings nothing. Raises ConnectionFault where they are too many."""


class Stream:
    """A stream.

    number: Its number.
    head: What it began with.
    deadline: Until when it has to be answered, on the monotonic clock; None: at any time.
    connection: Its connection.
    call: What serves it.
    ended: Whether the caller sends no more.
    closed: Whether it is over.
    received: Bytes that have arrived so far.
    head_held: The bytes of its head, where they are counted.
    """

    __slots__ = (
        "_buffer", "_finishing", "_headed", "_held", "_out", "_out_held", "_receive_window",
        "_told", "call", "closed", "connection", "deadline", "ended", "head", "head_held", "number",
        "received", "send_window",
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
        self._told = False  # that the message at the head of the buffer is too large
        self._held: MemoryHold | None = None  # of the buffer
        self._out = SendQueue()
        self._out_held: MemoryHold | None = None
        self._headed = False  # whether the response's headers were sent
        self._finishing: bytes | None = None  # the trailers that wait for messages

    # -- receiving

    def begin_data(self, length: int) -> None:
        """A frame of data begins, which counts as so many bytes for flow control."""
        if self.ended:
            self.reset(ErrorCode.STREAM_CLOSED)
            return
        self._receive_window -= length
        if self._receive_window < 0:
            self.reset(ErrorCode.FLOW_CONTROL_ERROR)

    def take_data(self, part: Part, *, end: bool) -> None:
        """Take what has come of it."""
        self.ended = end
        if self._finishing is not None:
            return  # it has its answer
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
        """The caller sends no more."""
        self.ended = True
        if self.call is not None and self._has_its_length():
            self.call.arrived()

    def _has_its_length(self) -> bool:
        """Whether as much has come as was announced; resets it if not."""
        if self.head.call.length in (None, self.received):
            return True
        self.reset(ErrorCode.PROTOCOL_ERROR)
        return False

    def take(self) -> SentMessage | None:
        """The next message, where all of it is there."""
        length = self._length_of_next()
        if length is None:
            return None
        buffer, end = self._buffer, PREFIX_BYTES + length
        compressed = buffer[0] != 0
        message: bytes | bytearray
        if len(buffer) == end and isinstance(buffer, bytearray) and end > SMALL_BYTES:
            del buffer[:PREFIX_BYTES]  # moves no bytes but its start
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
        """The only message of a call, where it has `most` bytes and is not compressed; or None."""
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
        """Have the message that was taken last, which was not compressed, be the next again."""
        self._buffer = b"\0%b%b%b" % (len(message).to_bytes(4, "big"), message, bytes(self._buffer))

    @property
    def has_more(self) -> bool:
        """Whether anything has come behind the message that was taken."""
        return bool(self._buffer)

    @property
    def partial(self) -> bool:
        """Whether part of a message is there, and not all of it."""
        return bool(self._buffer) and self._length_of_next() is None

    def _length_of_next(self) -> int | None:
        """The length of the message at the head of the buffer; None unless all of it is there."""
        buffer = self._buffer
        if len(buffer) < PREFIX_BYTES:
            return None
        length = int.from_bytes(buffer[1:PREFIX_BYTES], "big")
        if self.call is not None and length > self.call.most_bytes:
            if not self._told:
                self._told = True
                self.call.too_large(length)
            return None
        return length if len(buffer) >= PREFIX_BYTES + length else None

    def _let_send(self) -> None:
        """Let the caller send more where the message at the head of the buffer needs it."""
        if self._receive_window < STREAM_WINDOW // 2 and not (self.closed or self._told):
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
        """The peer takes more of it, or less."""
        self.send_window += more
        if self.send_window > MAX_WINDOW:
            self.reset(ErrorCode.FLOW_CONTROL_ERROR)
        elif self._out.size:
            self.connection.out.wait_for_turn(self)

    # -- sending

    @property
    def waits(self) -> int:
        """Bytes sent that are not on their way yet."""
        return self._out.size

    def respond(self, message: bytes, block: bytes = OK_TRAILERS) -> None:
        """Send the only message of a call, and end it well, with the trailers in `block`."""
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
        """As `respond`, for a message of any size in parts, of which none is copied if large."""
        if not self.closed and self._finishing is None:
            self._finishing = block  # it goes with the last of them
            self.send(parts)
            if not self._out.size and not self.closed:
                self._send_trailers(block)

    def send(self, parts: Sequence[Part]) -> None:
        """Send a message, as far as the caller lets us; `call.drained` tells when all of it is."""
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
        """End the call by this status, after what waits to be sent."""
        if self.closed or self._finishing is not None:
            return
        self._finishing = trailers(code, details, metadata, only=not self._headed)
        if not self._out.size:
            self._send_trailers(self._finishing)

    def reset(self, code: ErrorCode) -> None:
        """End the stream without a word to its caller."""
        if not self.closed:
            self.connection.out.write(rst_stream(self.number, code))
            self.lost()

    def lost(self) -> None:
        """The stream is over: it was reset, or its connection has gone."""
        if self.closed:
            return
        call = self.call
        self._close()
        if call is not None:
            call.gone()

    def send_some(self, most: int) -> int:
        """Send a frame of what waits, of at most so many bytes; the bytes it had."""
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
        if not self.ended:  # the caller need not send the rest
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
