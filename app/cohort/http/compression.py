"""Response compression with gzip and deflate, off the event loop.

https://www.rfc-editor.org/rfc/rfc9110#name-content-codings
"""

from __future__ import annotations

import asyncio
import zlib

from cohort.codec.compression import GZIP, ZLIB

COMPRESS_AT_ONCE = 32 * 1024
"""Bytes that may be compressed on the event loop, in 0.7 ms for floats."""

MIN_COMPRESSED = 1024
"""Bytes of a response below which compression costs more than it saves."""

LEVEL = 1  # a higher level hardly makes tensors smaller


async def compress(accept: str | None, body: bytes) -> tuple[bytes, str | None]:
    """Return the body to send and its Content-Encoding, or None if it is not compressed."""
    name = choose_coding(accept) if accept and len(body) >= MIN_COMPRESSED else None
    if name is None:
        return body, None
    if len(body) <= COMPRESS_AT_ONCE:
        return pack_body(name, body), name
    return await asyncio.to_thread(pack_body, name, body), name


def pack_body(coding: str, body: bytes) -> bytes:
    """Compress `body` with the coding that `choose_coding` returned."""
    return zlib.compress(body, LEVEL, GZIP if coding == "gzip" else ZLIB)


def packed_headers(coding: str) -> dict[str, str]:
    """Return the headers that compression adds to a response."""
    return {"content-encoding": coding, "vary": "accept-encoding"}


def choose_coding(accept: str) -> str | None:
    """Return the coding that an Accept-Encoding requests, or None unless it names just one.

    Libraries send `gzip, deflate, br` with every request. That allows compression but does not
    request it, and compressing floats takes longer than most models run.
    """
    weights = dict(map(_weight, accept.lower().split(",")))
    plain = weights.pop("identity", 1.0) > 0
    codings = {name: weight for name, weight in weights.items() if weight > 0}
    if plain and len(codings) != 1:
        return None
    ours = [name for name in ("gzip", "deflate") if name in codings]
    return max(ours, key=codings.__getitem__, default=None)


def accepts_gzip(accept: str) -> bool:
    """Return True if an Accept-Encoding allows gzip. Those of all browsers do."""
    weights = dict(map(_weight, accept.lower().split(",")))
    return weights.get("gzip", weights.get("*", 0.0)) > 0


def _weight(part: str) -> tuple[str, float]:
    name, _, weight = part.partition(";")
    key, _, number = weight.partition("=")
    try:
        return name.strip(), float(number) if key.strip() == "q" else 1.0
    except ValueError:
        return name.strip(), 0.0
