"""Compressed bodies and messages: gzip and deflate, within bounds and off the loop."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable

from cohort.errors import InvalidInput, TooLarge, UnsupportedMedia, quoted

DECOMPRESS_AT_ONCE = 256 * 1024
"""Bytes that may be decompressed on the loop: 0.8 ms."""

PART_BYTES = 4 * 2**20
"""Bytes that are decompressed on a thread before there must be room for more."""

GZIP = 16 + zlib.MAX_WBITS
ZLIB = zlib.MAX_WBITS
RAW_DEFLATE = -zlib.MAX_WBITS  # what some senders call deflate


async def decompress(
    encoding: str | None, body: bytes | bytearray, limit: int, hold: Callable[[int], None]
) -> bytes:
    """Give a body as it was before its Content-Encoding.

    `hold` is called with the number of bytes of each part before the next is unpacked, and raises
    where there is no room for them.

    Raises UnsupportedMedia, InvalidInput for a body that is not what it says, and TooLarge for one
    of more than `limit` bytes, of which it never makes more than one over.
    """
    name = (encoding or "identity").strip().lower()
    if name == "identity":
        return bytes(body)
    if name not in {"gzip", "x-gzip", "deflate"}:
        raise UnsupportedMedia(f"this route takes gzip and deflate, not {quoted(name)}")
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
        raise InvalidInput(f"the body is not the {name} that it is said to be") from None
    if size > limit:
        raise TooLarge(f"the body is larger than the {limit / 2**20:g} MiB this server takes")
    if not stream.eof:
        raise InvalidInput(f"the body ends within its {name}")
    if stream.unused_data:
        raise InvalidInput(f"the body goes on after its {name}")
    return parts[0] if len(parts) == 1 else await asyncio.to_thread(b"".join, parts)


def _deflate(body: bytes | bytearray) -> int:
    """Deflate means the zlib format; the first two bytes distinguish it from the raw one."""
    looks_zlib = len(body) > 1 and body[0] & 15 == 8 and int.from_bytes(body[:2]) % 31 == 0
    return ZLIB if looks_zlib else RAW_DEFLATE
