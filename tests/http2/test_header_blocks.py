"""Header blocks decode as in the hpack library, also those that are cached by their bytes."""

from __future__ import annotations

from collections.abc import Sequence

import hpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cohort.http2.field_decoding import FieldDecoder, Header
from cohort.http2.frames import ConnectionFault, ErrorCode
from cohort.http2.header_blocks import (
    MAX_HEADER_BYTES,
    MAX_KNOWN_BLOCKS,
    MAX_READ_BYTES,
    HeaderBlocks,
    encode,
)
from tests.examples import examples

names = st.sampled_from([b":path", b"te", b"x-a", b"x-b", b"grpc-timeout", b"authorization"])
values = st.sampled_from([b"", b"1", b"/a/b", b"trailers", b"x" * 300]) | st.binary(max_size=40)
fields = st.tuples(names, values, st.booleans())
steps = st.lists(
    st.one_of(st.lists(fields, max_size=6), st.integers(0, 4096)), min_size=1, max_size=12
)


class Plain:
    """Reads headers as they are."""

    def read(self, headers: Sequence[Header], held: int) -> list[Header]:
        assert held >= sum(len(name) + len(value) for name, value in headers)
        return [(bytes(name), bytes(value)) for name, value in headers]

    def too_large(self) -> list[Header]:
        return [(b"too", b"large")]


@given(steps, st.booleans())
def test_any_blocks_mean_what_was_encoded(
    steps: list[list[tuple[bytes, bytes, bool]] | int], huffman: bool
) -> None:
    """This holds after repeated blocks, and changes of the table and its size."""
    encoder, blocks = hpack.Encoder(), HeaderBlocks(Plain())
    for step in steps * 2:
        if isinstance(step, int):
            if step != encoder.header_table_size:  # else the library forgets an earlier change
                encoder.header_table_size = step
            continue
        headers = [hpack.HeaderTuple(name, value) for name, value, _ in step]
        for place, (name, value, secret) in enumerate(step):
            if secret:
                headers[place] = hpack.NeverIndexedHeaderTuple(name, value)
        block = encoder.encode(headers, huffman=huffman)
        assert blocks.decode(block) == [(name, value) for name, value, _ in step]


def _mutated(blocks: list[bytes], changes: list[tuple[int, int, int]]) -> list[bytes]:
    changed = [bytearray(block) for block in blocks]
    for which, at, byte in changes:
        block = changed[which % len(changed)]
        if block:
            block[at % len(block)] = byte
    return [bytes(block) for block in changed]


@settings(max_examples=examples(300))
@given(
    st.lists(st.lists(fields, max_size=4), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 400), st.integers(0, 255)), max_size=4),
    st.lists(st.binary(max_size=12), max_size=3),
    st.booleans(),
)
def test_any_bytes_mean_what_the_library_says(
    lists: list[list[tuple[bytes, bytes, bool]]],
    changes: list[tuple[int, int, int]],
    odd: list[bytes],
    huffman: bool,
) -> None:
    """Or neither reads them: changed blocks, behind good ones, and before them."""
    encoder = hpack.Encoder()
    blocks = [encoder.encode([(n, v) for n, v, _ in one], huffman=huffman) for one in lists]
    theirs, ours = hpack.Decoder(MAX_HEADER_BYTES), FieldDecoder(MAX_HEADER_BYTES)
    for block in [*_mutated(blocks, changes), *odd]:
        try:
            expected = [tuple(field) for field in theirs.decode(block, raw=True)]
        except (hpack.HPACKError, IndexError):  # the latter is the library's fault
            with pytest.raises(hpack.HPACKError):
                ours.decode(block)
            return
        assert ours.decode(block) == expected


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 120)), max_size=200))
def test_a_full_table_forgets_its_oldest(sizes: list[tuple[int, int]]) -> None:
    """Fields of any size come and go as they do on the caller's side, and are referred to."""
    encoder, decoder = hpack.Encoder(), FieldDecoder(1 << 20)
    for number, (size, back) in enumerate(sizes):
        names = [(b"n%d" % number, b"v" * size * 20)]
        if number >= back:
            names.append((b"n%d" % (number - back), b"v" * sizes[number - back][0] * 20))
        assert decoder.decode(encoder.encode(names)) == names


def test_what_the_table_forgot_is_not_there() -> None:
    """A field counts 32 bytes in addition to its bytes, so 39 of 105 are kept."""
    blocks = [b"\x40\1a\x48" + b"v" * 72 for _ in range(39)]
    decoder = FieldDecoder(1 << 20)
    decoder.decode(b"".join(blocks))
    assert decoder.decode(b"\xe4") == [(b"a", b"v" * 72)]  # the oldest
    with pytest.raises(hpack.HPACKError):
        decoder.decode(blocks[0] + b"\xe5")


def test_a_list_is_read_up_to_its_bytes() -> None:
    """One byte less refuses the list."""
    block = encode([(b"a", b"b" * 7)] * 10)
    assert len(FieldDecoder(400).decode(block)) == 10
    with pytest.raises(hpack.HPACKError):
        FieldDecoder(399).decode(block)


def test_the_same_bytes_may_mean_another_thing_later() -> None:
    """An index is that of a table that has changed since."""
    encoder, blocks = hpack.Encoder(), HeaderBlocks(Plain())
    first = [("x-a", "1")]
    blocks.decode(encoder.encode(first))
    known = encoder.encode(first)  # one index
    assert len(known) == 1
    assert blocks.decode(known) == blocks.decode(known) == [(b"x-a", b"1")]
    blocks.decode(encoder.encode([("x-b", "2")]))
    assert blocks.decode(known) == [(b"x-b", b"2")]


def test_so_many_blocks_are_known() -> None:
    """Callers who send others each time do not fill the memory."""
    blocks = HeaderBlocks(Plain())
    for number in range(3 * MAX_KNOWN_BLOCKS):
        blocks.decode(encode([(b"x", b"%d" % number)]))
        assert len(blocks._known) <= MAX_KNOWN_BLOCKS


@pytest.mark.parametrize(
    ("block", "code"),
    [
        (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", ErrorCode.COMPRESSION_ERROR),
        (b"\x80", ErrorCode.COMPRESSION_ERROR),
        (b"\xfe", ErrorCode.COMPRESSION_ERROR),
        (b"\x3f\xe2\xff\x7f", ErrorCode.COMPRESSION_ERROR),  # a larger table than was allowed
        (b"\0\x81\xff\1a", ErrorCode.COMPRESSION_ERROR),  # no Huffman code
        (b"\0\x05ab", ErrorCode.COMPRESSION_ERROR),  # ends within a name
        (encode([(b"a", b"b" * MAX_READ_BYTES)]), ErrorCode.ENHANCE_YOUR_CALM),
        # a bomb:
        (b"\x40\1a\x7f\x81\x1e" + b"b" * 4000 + b"\xbe" * 65, ErrorCode.COMPRESSION_ERROR),
    ],
)
def test_what_no_block_is_ends_the_connection(block: bytes, code: ErrorCode) -> None:
    """Otherwise both sides' tables would differ from then on."""
    with pytest.raises(ConnectionFault) as raised:
        HeaderBlocks(Plain()).decode(block)
    assert raised.value.code is code


@pytest.mark.parametrize("coded", [False, True])
def test_too_many_headers_are_read_all_the_same(coded: bool) -> None:
    """The connection continues, since the next block may refer to their entries in the table."""
    encoder, blocks = hpack.Encoder(), HeaderBlocks(Plain())
    most = MAX_HEADER_BYTES - 33 - 2 * 43  # a field counts 32 more bytes
    fields = [("x-a", "12345678"), ("x-b", "12345678"), ("c", "d" * most)]
    first, last = blocks.decode(encoder.encode(fields)), blocks.decode(encoder.encode(fields))
    assert len(first) == len(last) == 3
    fields[0] = ("x-c", "123456789")
    assert blocks.decode(encoder.encode(fields, huffman=coded)) == [(b"too", b"large")]
    assert blocks.decode(encoder.encode(fields[:1])) == [(b"x-c", b"123456789")]


@given(st.lists(st.tuples(st.binary(max_size=200), st.binary(max_size=20_000)), max_size=4))
@example([(b"a" * size, b"b" * (128 * size)) for size in range(125, 131)])
def test_what_we_encode_another_reads(headers: list[tuple[bytes, bytes]]) -> None:
    """Literals may have any length."""
    decoder = hpack.Decoder(1 << 20)
    assert [tuple(one) for one in decoder.decode(encode(headers), raw=True)] == headers


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("count", [1, 4, 90])
def test_of_codes_no_more_are_read_than_a_call_may_have(
    count: int, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longest codes refuse the call and leave the table as it was."""
    read: list[int] = []

    def plain(coded: bytes) -> bytes:
        read.append(len(coded))
        return b"x"

    monkeypatch.setattr("cohort.http2.field_decoding._plain", plain)
    size = 90 * 1024 // count
    coded = b"\xff" * size
    length = hpack.hpack.encode_integer(size, 7)
    length[0] |= 0x80
    blocks = HeaderBlocks(Plain())
    long = bytes(length) + coded
    block = (b"\x00\x01x" + long if named else b"\x00" + long + b"\x01x") * count
    assert blocks.decode(block) == [(b"too", b"large")]
    assert sum(read) <= MAX_HEADER_BYTES
    assert blocks.held == 0
