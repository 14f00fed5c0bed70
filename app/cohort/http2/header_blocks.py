"""Header blocks: received ones use HPACK's tables, sent ones use none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from hpack import HPACKError

from cohort.http2.field_decoding import FieldDecoder, Header
from cohort.http2.frames import ConnectionFault, ErrorCode

MAX_HEADER_BYTES = 16 * 1024
"""Maximum size of a call's header list, counted as in RFC 9113. It is announced to the peer."""

MAX_READ_BYTES, MAX_LIST_BYTES = 96 * 1024, 256 * 1024
"""Maximum sizes of a block and its list that are still decoded, so that only their call is refused.
"""

KEPT_WITH_FIELD = 96
"""Memory of a field in addition to its size in a list, in bytes."""

MAX_KNOWN_BLOCKS, MAX_KNOWN = 16, 512
"""Maximum number of cached blocks per connection, and the maximum size of one in bytes."""

T_co = TypeVar("T_co", covariant=True)


class HeadReader(Protocol[T_co]):
    """Interprets headers. The result depends on nothing else."""

    def read(self, headers: Sequence[Header], held: int) -> T_co:
        """Return the meaning of headers that take about `held` bytes of memory. It never fails."""

    def too_large(self) -> T_co:
        """Return the meaning of headers above MAX_HEADER_BYTES."""


class HeaderBlocks(Generic[T_co]):
    """The header blocks that a connection receives, in order.

    The meaning of a block depends on its bytes and the table. Most clients send the same bytes for
    each call once the table has their headers. A block that did not change the table is therefore
    cached until the table changes.
    """

    def __init__(self, heads: HeadReader[T_co]) -> None:
        self._heads = heads
        self._decoder = FieldDecoder(MAX_LIST_BYTES, kept_bytes=MAX_HEADER_BYTES)
        self._known: dict[bytes, T_co] = {}

    @property
    def held(self) -> int:
        """Return the approximate memory of the table. Cached blocks are few and short."""
        decoder = self._decoder
        return decoder.table_bytes + KEPT_WITH_FIELD * decoder.table_fields

    def decode(self, block: bytes) -> T_co:
        """Return the meaning of a block; the same object for a cached block.

        Raises ConnectionFault, after which the tables of both sides differ.
        """
        known = self._known.get(block)
        if known is not None:
            return known
        if len(block) > MAX_READ_BYTES:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "header block too long")
        before = self._decoder.changes
        try:
            headers = self._decoder.decode(block)
        except HPACKError as error:
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, str(error)) from None
        if self._decoder.bytes > MAX_HEADER_BYTES:
            meaning = self._heads.too_large()
        else:
            held = self._decoder.bytes + KEPT_WITH_FIELD * len(headers)
            meaning = self._heads.read(headers, held)
        if self._decoder.changes != before:
            self._known.clear()
        elif len(block) <= MAX_KNOWN:
            if len(self._known) >= MAX_KNOWN_BLOCKS:
                self._known.clear()
            self._known[block] = meaning
        return meaning


def encode(headers: Iterable[Header]) -> bytes:
    """Return a block of literals. It needs no table and is the same for every connection."""
    return b"".join(
        [b"\0" + _length(len(name)) + name + _length(len(value)) + value for name, value in headers]
    )


def _length(size: int) -> bytes:
    if size < 127:
        return bytes((size,))
    size -= 127
    out = bytearray((127,))
    while size >= 128:
        out.append(size & 127 | 128)
        size >>= 7
    out.append(size)
    return bytes(out)
