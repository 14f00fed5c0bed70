"""Frames of HTTP/2, and resets: a connection answers or ends, and leaves nothing behind.

An input is the bytes that a peer sends behind its preface and settings; its first byte selects the
pieces.
"""

from __future__ import annotations

import asyncio
import struct

from cohort.http2.frames import PREFACE
from cohort.http2.header_blocks import encode
from tests.http2.peers import HEADERS, Served

DATA, HEAD, RESET, SETTINGS, PING, WIDEN, MORE = 0, 1, 3, 4, 6, 8, 9
BLOCK = encode([(name.encode(), value.encode()) for name, value in HEADERS])
GREETING = PREFACE + b"\0\0\0\4\0\0\0\0\0"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    size = len(payload)
    return struct.pack(">BHBBI", size >> 16, size & 0xFFFF, kind, flags, stream) + payload


CANCEL = b"\0\0\0\x08"
CALL = frame(HEAD, 4, 1, BLOCK) + frame(DATA, 1, 1, b"\0\0\0\0\3abc")
SEEDS = [
    b"",
    b"\0" + CALL,
    b"\5" + CALL + frame(RESET, 0, 1, CANCEL),
    b"\1" + frame(HEAD, 4, 1, BLOCK) + frame(RESET, 0, 1, CANCEL) + frame(DATA, 1, 1, b"\0"),
    b"\0" + frame(HEAD, 0, 1, BLOCK[:9]) + frame(MORE, 4, 1, BLOCK[9:]) + frame(DATA, 9, 1, b"\0"),
    b"\0" + frame(WIDEN, 0, 0, b"\0\0\0\1") + frame(PING, 0, 0, b"12345678") + CALL,
    b"\0" + frame(SETTINGS, 0, 0, b"\0\4\0\0\0\0") + CALL + frame(WIDEN, 0, 1, b"\0\0\0\7"),
]
TOKENS = (
    *(frame(kind, flags, 1) for kind in range(10) for flags in (0, 1, 4, 5, 8)),
    *(frame(RESET, 0, stream, CANCEL) for stream in (1, 3, 5)),
    *(frame(HEAD, 5, stream, BLOCK) for stream in (3, 5, 7)),
    CALL,
)


def check(data: bytes) -> None:
    """Fail if it raises, or if a call or memory is left once the connection has closed."""
    asyncio.run(_check(data))


async def _check(data: bytes) -> None:
    served = Served()
    size = data[0] if data else 0
    sizes = [size] * (len(data) // size) if size else []
    async with asyncio.timeout(5):
        await served.feed(GREETING + data[1:], sizes)
    served.connection.connection_lost(None)
    assert not served.open
    assert not served.connection.streams
    assert not served.memory.used
