"""HPACK (RFC 7541), read: a block's fields, of which callers send a dozen with each call.

The `hpack` library has the tables that never change. Its decoder takes 29 µs for the block of a
call that has a deadline and a trace, which differ each time; this one takes 8.
"""

from __future__ import annotations

from hpack.exceptions import (
    HPACKDecodingError,
    InvalidTableIndexError,
    InvalidTableSizeError,
    OversizedHeaderListError,
)
from hpack.huffman_table import (
    HUFFMAN_COMPLETE,
    HUFFMAN_EMIT_SYMBOL,
    HUFFMAN_FAIL,
    HUFFMAN_TABLE,
)
from hpack.table import HeaderTable

Header = tuple[bytes, bytes]

_FIELD_BYTES = 32
"""What a field counts beside its name and its value, in a table and in a list."""

_STATIC = (b"", b""), *HeaderTable.STATIC_TABLE
_STATIC_ONES = HeaderTable.STATIC_TABLE_LENGTH
"""Fields that each table has, from the index 1 on; the next is that of what was added last."""

_MAX_TABLE = 4096
"""What a table's entries may count; the size that connections begin with, and announced."""

_MAX_INTEGER = 5
"""Bytes of an integer behind its first, at most: nothing here is as large."""

_INDEXED, _ADDED, _RESIZED, _HUFFMAN = 0x80, 0x40, 0x20, 0x80


class FieldDecoder:
    """Reads the blocks of one connection, in their order.

    most_bytes: Of a block's fields, as a table counts them.
    kept_bytes: Of those that are given; further ones may only change the table. Default: all.
    changes: How often the table has changed: between two changes, equal blocks mean the same.
    bytes: Of the fields of the last block.
    """

    def __init__(self, most_bytes: int, *, kept_bytes: int | None = None) -> None:
        self.changes = self.bytes = 0
        self._most_bytes = most_bytes
        self._spare = 0 if kept_bytes is None else most_bytes - kept_bytes
        self._added: list[Header] = []  # the table, its oldest field first
        self._most = self._left = _MAX_TABLE  # bytes of it

    @property
    def table_bytes(self) -> int:
        """What the fields of the table count."""
        return self._most - self._left

    @property
    def table_fields(self) -> int:
        """How many fields the table has."""
        return len(self._added)

    def decode(self, block: bytes) -> list[Header]:
        """A block's fields. Raises HPACKError, after which no other block can be read.

        Strings whose codes are longer than they are count as those do: that bounds what is read.
        """
        fields: list[Header] = []
        spare = self._spare
        added, left, at, end = self._added, self._most_bytes, 0, len(block)
        try:
            while at < end:
                first = block[at]
                at += 1
                if first >= _INDEXED:
                    index = first & 0x7F
                    if index == 0x7F:
                        index, at = _integer(block, at, index)
                    elif not index:
                        raise InvalidTableIndexError("no field has the index 0")
                    field = _STATIC[index] if index <= _STATIC_ONES else added[_STATIC_ONES - index]
                elif first & 0x60 == _RESIZED:
                    at = self._resize(block, at, first & 0x1F, first=left == self._most_bytes)
                    continue
                else:
                    most = 0x3F if first >= _ADDED else 0x0F
                    index = first & most
                    if index == most:
                        index, at = _integer(block, at, index)
                    start, room = at, None if first >= _ADDED else left - spare
                    if not index:
                        name, at = _string(block, at, room)
                    elif index <= _STATIC_ONES:
                        name = _STATIC[index][0]
                    else:
                        name = added[_STATIC_ONES - index][0]
                    value, at = _string(block, at, room)
                    field = name, value
                    if first >= _ADDED:
                        self._add(field)
                    longer = at - start - 2 * _MAX_INTEGER - len(name) - len(value)
                    if longer > 0:
                        left -= longer
                left -= len(field[0]) + len(field[1]) + _FIELD_BYTES
                if left >= spare:
                    fields.append(field)
                elif left < 0:
                    raise OversizedHeaderListError("too many header fields")
        except IndexError:
            raise HPACKDecodingError("a field that is not there") from None
        self.bytes = self._most_bytes - left
        return fields

    def _resize(self, block: bytes, at: int, size: int, *, first: bool) -> int:
        if size == 0x1F:
            size, at = _integer(block, at, size)
        if not first:
            raise HPACKDecodingError("a table's size behind a field")
        if size > _MAX_TABLE:
            raise InvalidTableSizeError("a larger table than was allowed")
        self._left += size - self._most
        self._most = size
        self._evict()
        return at

    def _add(self, field: Header) -> None:
        """Add a field, for which the oldest ones make room; one too large leaves none."""
        self._added.append(field)
        self._left -= len(field[0]) + len(field[1]) + _FIELD_BYTES
        self._evict()

    def _evict(self) -> None:
        self.changes += 1
        count = 0
        while self._left < 0:
            name, value = self._added[count]
            self._left += len(name) + len(value) + _FIELD_BYTES
            count += 1
        if count:
            del self._added[:count]


def _integer(block: bytes, at: int, value: int) -> tuple[int, int]:
    """The integer that goes on at `at`, and where it ends. Raises HPACKError, IndexError."""
    for shift in range(0, 7 * _MAX_INTEGER, 7):
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise HPACKDecodingError("too long an integer")


def _string(block: bytes, at: int, most: int | None = None) -> tuple[bytes, int]:
    """The string at `at`, and where it ends. Raises HPACKError, IndexError.

    most: Of more coded bytes it is given as they are, since nobody reads it: a byte takes longer
        than a field's other work. Default: it is read in any case, as a table has it.
    """
    first = block[at]
    size = first & 0x7F
    at += 1
    if size == 0x7F:
        size, at = _integer(block, at, size)
    end = at + size
    if end > len(block):
        raise IndexError
    if first < _HUFFMAN or (most is not None and size > most):
        return block[at:end], end
    return _plain(block[at:end]), end


class _Steps(dict[int, tuple[int, bytes, bool]]):
    """What a byte brings: the next state, the symbols that end, and whether the text may end.

    The key is a state, shifted, with the byte. The library's table has steps of four bits; two
    make one of these, when it is needed first. There are no more than 65,536.
    """

    def __missing__(self, key: int) -> tuple[int, bytes, bool]:
        state, symbols, whole = key >> 8, b"", False
        for bits in ((key & 0xFF) >> 4, key & 0x0F):
            state, flags, symbol = HUFFMAN_TABLE[state << 4 | bits]
            if flags & HUFFMAN_FAIL:
                raise HPACKDecodingError("no valid Huffman code")
            if flags & HUFFMAN_EMIT_SYMBOL:
                symbols += bytes((symbol,))
            whole = bool(flags & HUFFMAN_COMPLETE)
        step = self[key] = state << 8, symbols, whole
        return step


_STEPS = _Steps()


def _plain(coded: bytes) -> bytes:
    """A string of Huffman codes as it was. Raises HPACKError."""
    state, whole, symbols = 0, True, []
    for byte in coded:
        state, ended, whole = _STEPS[state | byte]
        symbols.append(ended)
    if not whole:
        raise HPACKDecodingError("Huffman codes that end within one")
    return b"".join(symbols)
