"""HPACK decoding (RFC 7541). Callers send about a dozen fields with each call.

The static tables are those of the `hpack` library. Its decoder takes 29 µs for a call with a
deadline and a trace, which differ each time; this one takes 8 µs.
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
"""Overhead of a field in a table or list, in addition to its name and value."""

_STATIC = (b"", b""), *HeaderTable.STATIC_TABLE
_STATIC_ONES = HeaderTable.STATIC_TABLE_LENGTH
"""Number of static fields. They begin at index 1; the newest dynamic field follows them."""

_MAX_TABLE = 4096
"""Maximum size of the dynamic table: the initial and the announced size."""

_MAX_INTEGER = 5
"""Maximum bytes of an integer after the first. All valid ones are smaller."""

_INDEXED, _ADDED, _RESIZED, _HUFFMAN = 0x80, 0x40, 0x20, 0x80


class FieldDecoder:
    """Decodes the blocks of one connection in order.

    most_bytes: Maximum size of a block's fields, counted as in a table.
    kept_bytes: Maximum size of the fields that are returned; further ones only change the table.
        Default: all.
    changes: Number of changes of the table. Between two changes, equal blocks have equal fields.
    bytes: Size of the fields of the last block.
    """

    def __init__(self, most_bytes: int, *, kept_bytes: int | None = None) -> None:
        self.changes = self.bytes = 0
        self._most_bytes = most_bytes
        self._spare = 0 if kept_bytes is None else most_bytes - kept_bytes
        self._added: list[Header] = []  # the table, oldest field first
        self._most = self._left = _MAX_TABLE  # bytes

    @property
    def table_bytes(self) -> int:
        """Return the size of the table's fields."""
        return self._most - self._left

    @property
    def table_fields(self) -> int:
        """Return the number of the table's fields."""
        return len(self._added)

    def decode(self, block: bytes) -> list[Header]:
        """Return a block's fields. Raises HPACKError, after which no other block can be decoded.

        A string whose code is longer than itself counts as its code, which bounds the work.
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
                        raise InvalidTableIndexError("index 0 is not a field")
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
            raise HPACKDecodingError("index of a missing field, or truncated block") from None
        self.bytes = self._most_bytes - left
        return fields

    def _resize(self, block: bytes, at: int, size: int, *, first: bool) -> int:
        if size == 0x1F:
            size, at = _integer(block, at, size)
        if not first:
            raise HPACKDecodingError("table size update after a field")
        if size > _MAX_TABLE:
            raise InvalidTableSizeError("table size above the limit")
        self._left += size - self._most
        self._most = size
        self._evict()
        return at

    def _add(self, field: Header) -> None:
        """Add a field and evict the oldest ones. A field that is too large empties the table."""
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
    """Return the integer that continues at `at`, and its end. Raises HPACKError, IndexError."""
    for shift in range(0, 7 * _MAX_INTEGER, 7):
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise HPACKDecodingError("integer too long")


def _string(block: bytes, at: int, most: int | None = None) -> tuple[bytes, int]:
    """Return the string at `at`, and its end. Raises HPACKError, IndexError.

    most: Coded bytes above which the string is returned without decoding, because it is not used.
        Decoding costs more per byte than a field's other work. Default: always decode, as for the
        table.
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
    """The effect of a byte: the next state, the completed symbols, and whether the text may end.

    The key is a shifted state with the byte. The library's table has steps of four bits; two of
    them make one here, on first use. There are at most 65,536.
    """

    def __missing__(self, key: int) -> tuple[int, bytes, bool]:
        state, symbols, whole = key >> 8, b"", False
        for bits in ((key & 0xFF) >> 4, key & 0x0F):
            state, flags, symbol = HUFFMAN_TABLE[state << 4 | bits]
            if flags & HUFFMAN_FAIL:
                raise HPACKDecodingError("invalid Huffman code")
            if flags & HUFFMAN_EMIT_SYMBOL:
                symbols += bytes((symbol,))
            whole = bool(flags & HUFFMAN_COMPLETE)
        step = self[key] = state << 8, symbols, whole
        return step


_STEPS = _Steps()


def _plain(coded: bytes) -> bytes:
    """Return a decoded Huffman string. Raises HPACKError."""
    state, whole, symbols = 0, True, []
    for byte in coded:
        state, ended, whole = _STEPS[state | byte]
        symbols.append(ended)
    if not whole:
        raise HPACKDecodingError("truncated Huffman code")
    return b"".join(symbols)
