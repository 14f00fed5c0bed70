"""Frames from received bytes. Data is passed on as it arrives."""

from __future__ import annotations

from time import monotonic
from typing import Protocol

from cohort.http2.frames import (
    ACK,
    CONTINUATION,
    DATA_FRAME,
    END_HEADERS,
    END_STREAM,
    FRAME_HEAD_BYTES,
    HEADERS,
    MAX_WINDOW,
    PADDED,
    PREFACE,
    SETTINGS,
    SMALLEST_FRAME,
    ConnectionFault,
    ErrorCode,
    header_fragment,
)
from cohort.http2.header_blocks import MAX_READ_BYTES
from cohort.http2.send_queue import Part

OUR_FRAME = 1 << 18
"""Maximum size of a DATA frame."""

_LARGEST = {DATA_FRAME: OUR_FRAME, HEADERS: MAX_READ_BYTES, CONTINUATION: MAX_READ_BYTES}
"""Maximum size by frame type. All others have the smallest limit of HTTP/2."""

COPIED_BYTES = 4096
"""Size up to which data is passed on as copied bytes; larger data is a view."""

TURN_SECONDS = 0.001
"""Seconds for which frames of a connection are read before its next turn, except for the last."""

FRAMES_BETWEEN_CHECKS, HEADERS_LIKE_ONE = 16, 512
"""Frames between two checks of the clock; bytes of headers that cost as much as a frame."""


class FrameHandler(Protocol):
    """Processes frames."""

    def take_block(self, number: int, flags: int, block: bytes) -> None:
        """Process a whole header block of a stream, with the flags of HEADERS."""

    def begin_data(self, number: int, length: int) -> None:
        """Process the start of a DATA frame, with its `length` for flow control."""

    def take_data(self, number: int, part: Part, *, end: bool) -> None:
        """Process a part of the data. `end`: it is the stream's last."""

    def count_useless(self) -> None:
        """Count a useless frame."""

    def take_other(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        """Process a frame of any other type."""


class FrameReader:
    """Reads frames. It keeps at most one incomplete frame that is not DATA.

    handler: Processes the frames. Its methods may raise ConnectionFault.

    greeted: True after the preface.
    settled: True after the first settings.
    """

    __slots__ = (
        "_block", "_block_of", "_data_left", "_end", "_handler", "_in_data", "_pad_left", "_rest",
        "_stream", "greeted", "settled",
    )  # fmt: skip

    def __init__(self, handler: FrameHandler) -> None:
        self._handler = handler
        self.greeted = self.settled = False
        self._rest: bytes = b""
        self._in_data = False  # inside a DATA frame
        self._stream, self._data_left, self._pad_left, self._end = 0, 0, 0, False  # its state
        self._block: bytearray | None = None  # the received part of a header block
        self._block_of = (0, 0)  # its stream and flags

    def add(self, data: bytes) -> None:
        """Add received bytes, for `read` to parse."""
        self._rest = self._rest + data if self._rest else data

    def forget(self) -> None:
        """Drop all bytes."""
        self._rest, self._block = b"", None

    def close(self) -> None:
        """Drop all bytes and the handler, which would otherwise be a reference cycle."""
        self.forget()
        del self._handler

    @property
    def pending(self) -> int:
        """Return the number of kept bytes."""
        return len(self._rest) + len(self._block or ())

    def read(self) -> bool:
        """Process the received frames. Return False if another connection's turn comes first.

        Raises ConnectionFault.
        """
        data, at, left = self._rest, 0, FRAMES_BETWEEN_CHECKS
        until = monotonic() + TURN_SECONDS
        if not self.greeted:
            if not PREFACE.startswith(data[: len(PREFACE)]):
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "this port accepts HTTP/2 only")
            if len(data) < len(PREFACE):
                return True
            self.greeted, at = True, len(PREFACE)
        size = len(data)
        handler = self._handler
        while True:
            if self._in_data:
                at = self._go_on_with_data(data, at)
                if self._in_data:
                    break
            if size - at < FRAME_HEAD_BYTES:
                break
            if left <= 0:
                if monotonic() >= until:
                    self._rest = data[at:]
                    return False
                left = FRAMES_BETWEEN_CHECKS
            length = data[at] << 16 | data[at + 1] << 8 | data[at + 2]
            kind, flags = data[at + 3], data[at + 4]
            number = int.from_bytes(data[at + 5 : at + 9], "big") & MAX_WINDOW
            self._check(kind, flags, length)
            start = at + FRAME_HEAD_BYTES
            end = start + length
            if kind == DATA_FRAME:
                if flags & PADDED and size == start:
                    break  # the length of its padding has not arrived
                at = start
                left -= 1
                handler.begin_data(number, length)
                if flags & PADDED or end > size:
                    at += self._begin_data(number, flags, length, data[start : start + 1])
                    continue
                handler.take_data(number, _cut(data, start, end), end=bool(flags & END_STREAM))
                at = end
                continue
            if end > size:
                break
            at = end
            left -= 1 + length // HEADERS_LIKE_ONE
            if kind == HEADERS:
                self._begin_block(number, flags, data[start:end])
            elif kind == CONTINUATION:
                self._go_on_with_block(number, flags, data[start:end])
            else:
                handler.take_other(kind, flags, number, data[start:end])
        self._rest = data[at:]
        return True

    def _check(self, kind: int, flags: int, length: int) -> None:
        if not self.settled:
            if kind != SETTINGS or flags & ACK:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the first frame must be SETTINGS")
            self.settled = True
        if length > SMALLEST_FRAME and length > _LARGEST.get(kind, SMALLEST_FRAME):
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "frame too large")
        if (self._block is not None) != (kind == CONTINUATION):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "header block interrupted")

    # -- data that is padded or incomplete

    def _begin_data(self, number: int, flags: int, length: int, first: bytes) -> int:
        """Begin a DATA frame, and return the number of bytes that contain the padding's length."""
        self._in_data, self._stream, self._end = True, number, bool(flags & END_STREAM)
        self._data_left, self._pad_left = length, 0
        if not flags & PADDED:
            return 0
        if not length or first[0] >= length:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "padding longer than the frame")
        self._pad_left = first[0]
        self._data_left = length - 1 - self._pad_left
        return 1

    def _go_on_with_data(self, data: bytes, at: int) -> int:
        """Pass on the received data, and return its end."""
        part = _cut(data, at, min(at + self._data_left, len(data)))
        self._data_left -= len(part)
        at += len(part)
        padding = min(self._pad_left, len(data) - at) if not self._data_left else 0
        self._pad_left -= padding
        self._in_data = bool(self._data_left or self._pad_left)
        if part or not self._in_data:
            self._handler.take_data(self._stream, part, end=self._end and not self._in_data)
        return at + padding

    # -- header blocks

    def _begin_block(self, number: int, flags: int, payload: bytes) -> None:
        fragment = header_fragment(payload, flags, number) if flags & ~5 else payload
        if flags & END_HEADERS:
            self._handler.take_block(number, flags, fragment)
        else:
            self._block, self._block_of = bytearray(fragment), (number, flags)

    def _go_on_with_block(self, number: int, flags: int, payload: bytes) -> None:
        begun, first = self._block_of
        if self._block is None or number != begun:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "header block interrupted")
        self._block += payload
        self._handler.count_useless()
        if len(self._block) > MAX_READ_BYTES:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "header block too long")
        if flags & END_HEADERS:
            block, self._block = bytes(self._block), None
            self._handler.take_block(number, first, block)


def _cut(data: bytes, start: int, end: int) -> Part:
    return data[start:end] if end - start <= COPIED_BYTES else memoryview(data)[start:end]
