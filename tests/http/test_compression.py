"""Compressed bodies, in and out."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cohort.codec.compression import DECOMPRESS_AT_ONCE, decompress
from cohort.errors import InvalidInput, TooLarge, UnsupportedMedia
from cohort.http.compression import COMPRESS_AT_ONCE, accepts_gzip, compress

LIMIT = 1 << 20
TEXT = b"0123456789" * 20_000


def plenty(count: int) -> None:
    """Accept `count` more bytes."""


def bare_deflate(text: bytes) -> bytes:
    """Deflate as some senders misread it, without zlib's frame."""
    return zlib.compress(text, 6, -15)


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        (None, TEXT),
        ("identity", TEXT),
        ("gzip", gzip.compress(TEXT)),
        ("x-gzip", gzip.compress(TEXT)),
        ("GZIP ", gzip.compress(TEXT)),
        ("deflate", zlib.compress(TEXT)),
        ("deflate", bare_deflate(TEXT)),
    ],
)
async def test_a_body_comes_out_as_it_was(encoding: str | None, body: bytes) -> None:
    """Each coding is unpacked, also both formats called deflate."""
    assert await decompress(encoding, body, LIMIT, plenty) == TEXT


@pytest.mark.parametrize(
    "size",
    [0, 1, *(DECOMPRESS_AT_ONCE + step for step in (-1, 0, 1)), LIMIT - 1, LIMIT],
)
async def test_any_size_up_to_the_limit_comes_out(size: int) -> None:
    """It is unpacked on the event loop or on a thread."""
    assert await decompress("gzip", gzip.compress(bytes(size)), LIMIT, plenty) == bytes(size)


@pytest.mark.parametrize("limit", [DECOMPRESS_AT_ONCE // 4, LIMIT])
@pytest.mark.parametrize("factor", [1, 50])
@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_a_bomb_is_too_large(limit: int, factor: int, encoding: str) -> None:
    """It is refused however small its packed form is, and is not unpacked beyond the limit."""
    bomb = (gzip if encoding == "gzip" else zlib).compress(bytes(factor * LIMIT + 1))
    assert len(bomb) < LIMIT
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge, match=f"larger than the {limit / 2**20:g} MiB"):
            await decompress(encoding, bomb, limit, plenty)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    if factor == 50:
        assert peak < 20 * LIMIT  # the whole output would be 50 times the limit


@pytest.mark.parametrize(
    ("encoding", "body", "says"),
    [
        ("gzip", b"", "ends within"),
        ("gzip", TEXT, "is not gzip"),
        ("deflate", gzip.compress(TEXT), "is not deflate"),
        ("gzip", gzip.compress(TEXT)[:-1], "ends within"),
        ("gzip", gzip.compress(TEXT)[:-8] + bytes(8), "is not gzip"),
        ("gzip", gzip.compress(TEXT) + b"x", "continues after"),
        ("gzip", gzip.compress(TEXT) * 2, "continues after"),
    ],
)
async def test_a_broken_body_is_told(encoding: str, body: bytes, says: str) -> None:
    """It may be cut short, damaged, or followed by other bytes."""
    with pytest.raises(InvalidInput, match=says):
        await decompress(encoding, body, LIMIT, plenty)


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "*", ""])
async def test_other_codings_are_named(encoding: str) -> None:
    """An unknown coding is refused before the body is read; an empty one means no coding."""
    if not encoding:
        assert await decompress(encoding, TEXT, LIMIT, plenty) == TEXT
        return
    with pytest.raises(UnsupportedMedia, match="gzip and deflate"):
        await decompress(encoding, TEXT, LIMIT, plenty)


@given(st.binary(max_size=200), st.sampled_from(["gzip", "deflate"]))
async def test_no_bytes_do_more_than_be_refused(body: bytes, encoding: str) -> None:
    """Random ones, read as a compressed body."""
    with suppress(InvalidInput):
        await decompress(encoding, body, LIMIT, plenty)


@pytest.mark.parametrize(
    ("accept", "encoding"),
    [
        (None, None),
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("GZIP;q=0.5", "gzip"),
        ("gzip, identity", "gzip"),
        ("gzip, deflate, br", None),
        ("gzip;q=1, deflate;q=0.5, identity;q=0", "gzip"),
        ("deflate;q=0.9, gzip;q=0.5, identity;q=0", "deflate"),
        ("gzip;q=0", None),
        ("gzip;q=x", None),
        ("br", None),
        ("identity", None),
        ("*", None),
        ("", None),
    ],
)
async def test_an_answer_is_compressed_where_one_coding_is_asked_for(
    accept: str | None, encoding: str | None
) -> None:
    """A library's standing list asks for none in particular, and is sent plain bytes."""
    body, got = await compress(accept, TEXT)
    assert got == encoding
    assert {"gzip": unzipped, "deflate": inflated}.get(got or "", bytes)(body) == TEXT


@pytest.mark.parametrize(
    ("accept", "accepted"),
    [
        ("gzip, deflate, br, zstd", True),
        ("deflate, GZIP;q=0.5", True),
        ("*", True),
        ("*;q=0, gzip", True),
        ("gzip;q=0", False),
        ("*, gzip;q=0", False),
        ("gzip;q=x", False),
        ("br", False),
        ("x-gzips", False),
        ("", False),
    ],
)
def test_what_is_kept_as_gzip_is_sent_so_where_that_is_allowed(accept: str, accepted: bool) -> None:
    """Naming gzip among others is enough; a weight of 0 forbids it."""
    assert accepts_gzip(accept) is accepted


def unzipped(body: bytes) -> bytes:
    """Return the content of a gzip."""
    return gzip.decompress(body)


def inflated(body: bytes) -> bytes:
    """Return the content of a zlib frame."""
    return zlib.decompress(body)


@pytest.mark.parametrize("size", [COMPRESS_AT_ONCE, COMPRESS_AT_ONCE + 1])
async def test_a_large_answer_is_compressed_beside_the_loop(size: int) -> None:
    """It unpacks to the same bytes."""
    body, _ = await compress("gzip", bytes(size))
    assert gzip.decompress(body) == bytes(size)


async def test_a_short_answer_stays_as_it_is() -> None:
    """A short response is not compressed, because it would hardly get shorter."""
    assert await compress("gzip", b"short") == (b"short", None)
