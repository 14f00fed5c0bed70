"""Compressed bodies and messages: gzip and deflate, within bounds and off the loop."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable

from cohort.errors import InvalidInput, TooLarge, UnsupportedMedia, quoted

DECOMPRESS_AT_ONCE = 256 * 1024
"""Maximum bytes decompressed on the event loop: 0.8 ms."""

PART_BYTES = 4 * 2**20
"""Bytes decompressed on a thread before memory for more is reserved."""

GZIP = 16 + zlib.MAX_WBITS
ZLIB = zlib.MAX_WBITS
RAW_DEFLATE = -zlib.MAX_WBITS  # some senders call this deflate


async def decompress(
    encoding: str | None, body: bytes | bytearray, limit: int, hold: Callable[[int], None]
) -> bytes:
    """Decode a body by its Content-Encoding.

    hold: Called with the size of each part before the next is decompressed. It raises an error if
        there is no room for them.

    Raises UnsupportedMedia for an unknown encoding, and InvalidInput for a body that is not valid
    in its encoding. Raises TooLarge for more than `limit` bytes; it decompresses at most one more.
    """
    name = (encoding or "identity").strip().lower()
    if name == "identity":
        return bytes(body)
    if name not in {"gzip", "x-gzip", "deflate"}:
        raise UnsupportedMedia(f"this route accepts gzip and deflate, not {quoted(name)}")
    stream = zlib.decompressobj(GZIP if name != "deflate" else _deflate(body))
    try:
        parts = [stream.decompress(body, min(DECOMPRESS_AT_ONCE, limit) + 1)]
        size = len(parts[0])
        hold(size)
        while stream.unconsumed_tail and size <= limit:
            most = min(PART_BYTES, limit + 1 - size)
            parts.append(await asyncio.to_thread(stream.decompress, stream.unconsumed_tail, most))
            size += len(parts[-1])
            hold(len(parts[-1]))
    except zlib.error:
        raise InvalidInput(
            f"the body is not {name}, although its headers name that encoding"
        ) from None
    if size > limit:
        raise TooLarge(
            f"the body is larger than the {limit / 2**20:g} MiB that this server accepts"
        )
    if not stream.eof:
        raise InvalidInput(f"the body ends within its {name}")
    if stream.unused_data:
        raise InvalidInput(f"the body continues after its {name}")
    return parts[0] if len(parts) == 1 else await asyncio.to_thread(b"".join, parts)


def _deflate(body: bytes | bytearray) -> int:
    """Return zlib's window bits for "deflate".

    It means the zlib format; the first two bytes distinguish it from raw deflate."""
    looks_zlib = len(body) > 1 and body[0] & 15 == 8 and int.from_bytes(body[:2]) % 31 == 0
    return ZLIB if looks_zlib else RAW_DEFLATE
