"""Header blocks: HPACK's state for those that come, none for those that are sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from hpack import HPACKError

from cohort.http2.field_decoding import FieldDecoder, Header
from cohort.http2.frames import ConnectionFault, ErrorCode

MAX_HEADER_BYTES = 16 * 1024
"""Of a call's header list, as RFC 9113 counts it; announced to the peer."""

MAX_READ_BYTES, MAX_LIST_BYTES = 96 * 1024, 256 * 1024
"""Of a block, and of its list, that is read all the same, so that its call alone is refused."""

KEPT_WITH_FIELD = 96
"""Bytes of memory that a field takes, beside what a list counts of it."""

MAX_KNOWN_BLOCKS, MAX_KNOWN = 16, 512
"""Blocks of a connection that are remembered, and the bytes of one."""

T_co = TypeVar("T_co", covariant=True)


class HeadReader(Protocol[T_co]):
    """What makes of headers what they mean; that depends on nothing else."""

    def read(self, headers: Sequence[Header], held: int) -> T_co:
        """The meaning; it never fails. The headers take about `held` bytes of memory."""

    def too_large(self) -> T_co:
        """What headers above MAX_HEADER_BYTES mean."""


class HeaderBlocks(Generic[T_co]):
    """The header blocks that a connection receives, in their order.

    What a block means depends on its bytes and on the table, and most clients send the same bytes
    for each call once the table has their headers. So a block that did not change the table is
    looked up by its bytes until the table changes.
    """

    def __init__(self, heads: HeadReader[T_co]) -> None:
        self._heads = heads
        self._decoder = FieldDecoder(MAX_LIST_BYTES, kept_bytes=MAX_HEADER_BYTES)
        self._known: dict[bytes, T_co] = {}

    @property
    def held(self) -> int:
        """About as many bytes of memory as the table takes; known blocks are few and short."""
        decoder = self._decoder
        return decoder.table_bytes + KEPT_WITH_FIELD * decoder.table_fields

    def decode(self, block: bytes) -> T_co:
        """What a block means: the same object again for one that is known.

        Raises ConnectionFault: the tables of both sides differ from then on.
        """
        known = self._known.get(block)
        if known is not None:
            return known
        if len(block) > MAX_READ_BYTES:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too long a header block")
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
    """A block of literals, which needs no table, and is the same for every connection."""
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
