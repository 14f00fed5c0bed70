"""Frames: their numbers, their bytes, and what is wrong with them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA_FRAME, HEADERS, PRIORITY_FRAME, RST_STREAM, SETTINGS = 0, 1, 2, 3, 4
PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 5, 6, 7, 8, 9
"""Types of frames."""

END_STREAM = ACK = 1
END_HEADERS, PADDED, PRIORITIZED = 4, 8, 32
"""Flags."""

FRAME_HEAD_BYTES = 9
"""Of a frame's head: its length, type, flags and stream."""

MAX_WINDOW = 2**31 - 1
FIRST_WINDOW = 65_535
SMALLEST_FRAME, MAX_FRAME = 16_384, 2**24 - 1
"""What RFC 9113 starts from, and its bounds."""

HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS = 1, 2, 3
INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = 4, 5, 6
"""Settings."""

_HEAD = struct.Struct(">HBBBI")
_SETTING = struct.Struct(">HI")


class ErrorCode(IntEnum):
    """Why a stream or a connection ends."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class ConnectionFault(Exception):
    """What the peer sent ends the connection."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


def frame_head(length: int, kind: int, flags: int, stream: int) -> bytes:
    """The head of a frame."""
    return _HEAD.pack(length >> 8, length & 0xFF, kind, flags, stream)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A whole frame."""
    return frame_head(len(payload), kind, flags, stream) + payload


def settings_frame(settings: dict[int, int]) -> bytes:
    """Our settings."""
    payload = b"".join([_SETTING.pack(number, value) for number, value in settings.items()])
    return frame(SETTINGS, 0, 0, payload)


def window_update(stream: int, count: int) -> bytes:
    """Let the peer send so many more bytes; stream 0 is the connection."""
    return frame(WINDOW_UPDATE, 0, stream, count.to_bytes(4, "big"))


def rst_stream(stream: int, code: ErrorCode) -> bytes:
    """End a stream."""
    return frame(RST_STREAM, 0, stream, code.to_bytes(4, "big"))


def goaway(last: int, code: ErrorCode, reason: str = "") -> bytes:
    """Take no stream after `last`."""
    text = reason.encode("ascii", "replace")[:200]
    return frame(GOAWAY, 0, 0, last.to_bytes(4, "big") + code.to_bytes(4, "big") + text)


def settings_in(payload: bytes) -> Iterator[tuple[int, int]]:
    """The peer's settings, in their order. Raises ConnectionFault for what may not be."""
    if len(payload) % _SETTING.size:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS of an odd length")
    for number, value in _SETTING.iter_unpack(payload):
        if number == INITIAL_WINDOW_SIZE and value > MAX_WINDOW:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "too large an initial window")
        if number == MAX_FRAME_SIZE and not SMALLEST_FRAME <= value <= MAX_FRAME:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "no valid size of frames")
        if number == ENABLE_PUSH and value > 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "ENABLE_PUSH is 0 or 1")
        yield number, value


def read_increment(payload: bytes) -> int:
    """Of a WINDOW_UPDATE; 0 is the peer's mistake. Raises ConnectionFault."""
    if len(payload) != 4:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE of an odd length")
    return int.from_bytes(payload, "big") & MAX_WINDOW


def without_padding(payload: bytes, flags: int) -> bytes:
    """What is in a padded frame. Raises ConnectionFault."""
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "more padding than frame")
    return payload[1 : len(payload) - payload[0]]


def header_fragment(payload: bytes, flags: int, stream: int) -> bytes:
    """What HEADERS has of a header block. Raises ConnectionFault."""
    payload = without_padding(payload, flags)
    if flags & PRIORITIZED:
        if len(payload) < 5:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "HEADERS without its priority")
        if int.from_bytes(payload[:4], "big") & MAX_WINDOW == stream:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a stream that depends on itself")
        payload = payload[5:]
    return payload
