"""Compressed responses: gzip and deflate, off the loop.

https://www.rfc-editor.org/rfc/rfc9110#name-content-codings
"""

from __future__ import annotations

import asyncio
import zlib

from cohort.codec.compression import GZIP, ZLIB

COMPRESS_AT_ONCE = 32 * 1024
"""Bytes that may be compressed on the loop: 0.7 ms for floats."""

MIN_COMPRESSED = 1024
"""Bytes of a response below which compressing it costs more than it saves."""

LEVEL = 1  # tensors hardly get smaller with more effort


async def compress(accept: str | None, body: bytes) -> tuple[bytes, str | None]:
    """Give the body to send and its Content-Encoding, None where it stays as it is."""
    name = choose_coding(accept) if accept and len(body) >= MIN_COMPRESSED else None
    if name is None:
        return body, None
    if len(body) <= COMPRESS_AT_ONCE:
        return pack_body(name, body), name
    return await asyncio.to_thread(pack_body, name, body), name


def pack_body(coding: str, body: bytes) -> bytes:
    """Compress by what `choose_coding` gave."""
    return zlib.compress(body, LEVEL, GZIP if coding == "gzip" else ZLIB)


def packed_headers(coding: str) -> dict[str, str]:
    """The headers that a compressed response has besides its own."""
    return {"content-encoding": coding, "vary": "accept-encoding"}


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


def accepts_gzip(accept: str) -> bool:
    """Say whether an Accept-Encoding allows gzip, as those of all browsers do."""
    weights = dict(map(_weight, accept.lower().split(",")))
    return weights.get("gzip", weights.get("*", 0.0)) > 0


def _weight(part: str) -> tuple[str, float]:
    name, _, weight = part.partition(";")
    key, _, number = weight.partition("=")
    try:
        return name.strip(), float(number) if key.strip() == "q" else 1.0
    except ValueError:
        return name.strip(), 0.0
