"""Compressed bodies: gzip and deflate, in and out, within bounds and off the loop.

https://www.rfc-editor.org/rfc/rfc9110#name-content-codings
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable

from app.errors import InvalidInput, TooLarge, UnsupportedMedia, quoted

DECOMPRESS_AT_ONCE = 256 * 1024
"""Bytes that may be decompressed on the loop: 0.8 ms."""

PART_BYTES = 4 * 2**20
"""Bytes that are decompressed on a thread before there must be room for more."""

COMPRESS_AT_ONCE = 32 * 1024
"""Bytes that may be compressed on the loop: 0.7 ms for floats."""

SHORTEST_COMPRESSED = 1024
"""Bytes of a response below which compressing it costs more than it saves."""

LEVEL = 1  # tensors hardly get smaller with more effort

GZIP = 16 + zlib.MAX_WBITS
ZLIB = zlib.MAX_WBITS
RAW_DEFLATE = -zlib.MAX_WBITS  # what some senders call deflate


async def decompress(
    encoding: str | None, body: bytes, limit: int, hold: Callable[[int], None]
) -> bytes:
    """Give a body as it was before its Content-Encoding.

    `hold` is called with the number of bytes of each part before the next is unpacked, and raises
    where there is no room for them.

    Raises UnsupportedMedia, InvalidInput for a body that is not what it says, and TooLarge for one
    of more than `limit` bytes, of which it never makes more than one over.
    """
    name = (encoding or "identity").strip().lower()
    if name == "identity":
        return body
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
        raise InvalidInput(f"the body is not the {name} that content-encoding says") from None
    if size > limit:
        raise TooLarge(f"the body is larger than the {limit / 2**20:g} MiB this server takes")
    if not stream.eof:
        raise InvalidInput(f"the body ends within its {name}")
    if stream.unused_data:
        raise InvalidInput(f"the body goes on after its {name}")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _deflate(body: bytes) -> int:
    """Deflate means the zlib format; the first two bytes distinguish it from the raw one."""
    looks_zlib = len(body) > 1 and body[0] & 15 == 8 and int.from_bytes(body[:2]) % 31 == 0
    return ZLIB if looks_zlib else RAW_DEFLATE


async def compress(accept: str | None, body: bytes) -> tuple[bytes, str | None]:
    """Give the body to send and its Content-Encoding, None where it stays as it is."""
    name = choose_coding(accept) if accept and len(body) >= SHORTEST_COMPRESSED else None
    if name is None:
        return body, None
    wbits = GZIP if name == "gzip" else ZLIB
    if len(body) <= COMPRESS_AT_ONCE:
        return zlib.compress(body, LEVEL, wbits), name
    return await asyncio.to_thread(zlib.compress, body, LEVEL, wbits), name


def choose_coding(accept: str) -> str | None:
    """Say which coding an Accept-Encoding asks for: None, unless it names just one.

    Libraries send `gzip, deflate, br` with every request: that allows compression
    without requesting it. Compressing floats takes longer than most models run.
    """
    weights = dict(map(_weight, accept.lower().split(",")))
    plain = weights.pop("identity", 1.0) > 0
    codings = {name: weight for name, weight in weights.items() if weight > 0}
    if plain and len(codings) != 1:
        return None
    ours = [name for name in ("gzip", "deflate") if name in codings]
    return max(ours, key=codings.__getitem__, default=None)


def _weight(part: str) -> tuple[str, float]:
    name, _, weight = part.partition(";")
    key, _, number = weight.partition("=")
    try:
        return name.strip(), float(number) if key.strip() == "q" else 1.0
    except ValueError:
        return name.strip(), 0.0
