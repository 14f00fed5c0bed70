"""Frames: their types, encoding and errors."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA_FRAME, HEADERS, PRIORITY_FRAME, RST_STREAM, SETTINGS = 0, 1, 2, 3, 4
PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 5, 6, 7, 8, 9
"""Frame types."""

END_STREAM = ACK = 1
END_HEADERS, PADDED, PRIORITIZED = 4, 8, 32
"""Frame flags."""

FRAME_HEAD_BYTES = 9
"""Size of a frame's head: length, type, flags and stream."""

MAX_WINDOW = 2**31 - 1
FIRST_WINDOW = 65_535
SMALLEST_FRAME, MAX_FRAME = 16_384, 2**24 - 1
"""Initial values of RFC 9113, and their bounds."""

HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS = 1, 2, 3
INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = 4, 5, 6
"""Settings."""

_HEAD = struct.Struct(">HBBBI")
_SETTING = struct.Struct(">HI")


class ErrorCode(IntEnum):
    """The reason why a stream or connection ends."""

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
    """An error of the peer that ends the connection."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


def frame_head(length: int, kind: int, flags: int, stream: int) -> bytes:
    """Return the head of a frame."""
    return _HEAD.pack(length >> 8, length & 0xFF, kind, flags, stream)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return a whole frame."""
    return frame_head(len(payload), kind, flags, stream) + payload


def settings_frame(settings: dict[int, int]) -> bytes:
    """Return a SETTINGS frame."""
    payload = b"".join([_SETTING.pack(number, value) for number, value in settings.items()])
    return frame(SETTINGS, 0, 0, payload)


def window_update(stream: int, count: int) -> bytes:
    """Return a frame that lets the peer send `count` more bytes. Stream 0 is the connection."""
    return frame(WINDOW_UPDATE, 0, stream, count.to_bytes(4, "big"))


def rst_stream(stream: int, code: ErrorCode) -> bytes:
    """Return a frame that ends a stream."""
    return frame(RST_STREAM, 0, stream, code.to_bytes(4, "big"))


def goaway(last: int, code: ErrorCode, reason: str = "") -> bytes:
    """Return a frame that refuses streams after `last`."""
    text = reason.encode("ascii", "replace")[:200]
    return frame(GOAWAY, 0, 0, last.to_bytes(4, "big") + code.to_bytes(4, "big") + text)


def settings_in(payload: bytes) -> Iterator[tuple[int, int]]:
    """Yield the peer's settings in order. Raises ConnectionFault for invalid ones."""
    if len(payload) % _SETTING.size:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS of invalid length")
    for number, value in _SETTING.iter_unpack(payload):
        if number == INITIAL_WINDOW_SIZE and value > MAX_WINDOW:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "initial window too large")
        if number == MAX_FRAME_SIZE and not SMALLEST_FRAME <= value <= MAX_FRAME:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "invalid maximum frame size")
        if number == ENABLE_PUSH and value > 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "ENABLE_PUSH must be 0 or 1")
        yield number, value


def read_increment(payload: bytes) -> int:
    """Return the increment of a WINDOW_UPDATE; 0 is the peer's error. Raises ConnectionFault."""
    if len(payload) != 4:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE of invalid length")
    return int.from_bytes(payload, "big") & MAX_WINDOW


def without_padding(payload: bytes, flags: int) -> bytes:
    """Return a frame's payload without padding. Raises ConnectionFault."""
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "padding longer than the frame")
    return payload[1 : len(payload) - payload[0]]


def header_fragment(payload: bytes, flags: int, stream: int) -> bytes:
    """Return the part of a header block in HEADERS. Raises ConnectionFault."""
    payload = without_padding(payload, flags)
    if flags & PRIORITIZED:
        if len(payload) < 5:
            raise ConnectionFault(
                ErrorCode.FRAME_SIZE_ERROR, "HEADERS without the announced priority"
            )
        if int.from_bytes(payload[:4], "big") & MAX_WINDOW == stream:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a stream that depends on itself")
        payload = payload[5:]
    return payload
