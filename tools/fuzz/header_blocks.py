"""HTTP/2 header blocks: ours must decode as in the hpack library, block after block.

An input is blocks of one connection, each behind two bytes that say how long it is.
"""

from __future__ import annotations

from collections.abc import Iterator

import hpack

from cohort.http2.field_decoding import FieldDecoder

MAX_BYTES = 64 * 1024


def one(*blocks: bytes) -> bytes:
    return b"".join(len(block).to_bytes(2, "big") + block for block in blocks)


def _encoded(*, huffman: bool) -> bytes:
    encoder = hpack.Encoder()
    headers = [(":method", "POST"), (":path", "/a"), ("x-a", "b" * 40), ("te", "trailers")]
    return one(*(encoder.encode(headers, huffman=huffman) for _ in range(3)))


SEEDS = [
    b"",
    _encoded(huffman=True),
    _encoded(huffman=False),
    one(b"\x20\x40\x01x\x01y", b"\xbe"),
    one(b"\x3f\xe1\x1f\x82"),
    one(b"\x00\x01x\x83\xff\xff\xff"),
]
TOKENS = (b"\x40\x01x", b"\x10\x01x", b"\x00\x01x", b"\x3f\xe1\x1f", b"\x20", b"\xbe", b"\x7f\x80")


def check(data: bytes) -> None:
    """Fail if the two differ, or if another error than hpack's is raised."""
    ours, theirs = FieldDecoder(MAX_BYTES), hpack.Decoder(MAX_BYTES)
    theirs.max_allowed_table_size = 4096
    for block in _blocks(data):
        try:
            found = ours.decode(block)
        except hpack.HPACKError:
            return  # it refuses more: integers of any length, and codes that are longer than texts
        assert found == [(bytes(n), bytes(v)) for n, v in theirs.decode(block, raw=True)]


def _blocks(data: bytes) -> Iterator[bytes]:
    at = 0
    while at + 2 <= len(data):
        size = int.from_bytes(data[at : at + 2], "big")
        yield data[at + 2 : at + 2 + size]
        at += 2 + size
