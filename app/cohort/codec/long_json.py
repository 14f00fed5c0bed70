"""Long JSON, read in pieces, so that other threads run between them.

orjson and simdjson keep the interpreter's lock from a text's first byte to its last. Their result
takes up to thirty times the size of the text. So a long text is cut first
(`cohort.codec.cutting`). Its objects are read at once. Its long lists stay text, as a `LongList`,
and are parsed piece by piece when they are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from secrets import token_hex
from typing import Any

import numpy as np
import orjson

from cohort.codec.cutting import (
    BLOCK_BYTES,
    CLOSING,
    LIST,
    OBJECT,
    TEXT,
    Section,
    Value,
    broken,
    check_closed,
    cut,
    structure,
)
from cohort.codec.missing_values import load_json
from cohort.errors import InvalidInput

CUT_FROM_BYTES = 1 << 18
"""Minimum size of a body that is read in pieces."""

SHORT_BYTES = 256
"""Lists and objects inside objects, up to this size, are read at once."""

MAX_MEMBERS = 10_000
"""Maximum members of objects and elements of non-tensor lists, in a long body."""

MAX_PIECE_BYTES = 1 << 20
"""Maximum bytes of a piece without its long values. Only one number or space can be longer."""

MAX_OBJECT_DEPTH = 16
"""Maximum nesting of objects; valid requests have four."""


def read_long(body: bytes) -> object:
    """Read a long body as `orjson.loads` does, with LongLists in it. Raises InvalidInput."""
    body = body.strip(b" \t\n\r")
    pieces = cut(body)
    if len(pieces) > 1:
        raise broken("unexpected content after document", pieces[0].end)
    documents = _Source(body).read(pieces[0], LIST, deep=0)
    if len(documents) != 1:  # no value, or several without a separator
        raise InvalidInput("the body is not valid JSON: it has no value")
    return documents[0]


class LongList:
    """A list of at least one element that is not parsed yet.

    Its elements are as orjson makes them, except those longer than a block. Such an element is a
    LongList, or a dict with LongLists in it. All methods that parse raise InvalidInput.
    """

    __slots__ = ("_pieces", "_source")

    def __init__(self, source: _Source, pieces: Sequence[Section]) -> None:
        self._source = source
        self._pieces = pieces

    def __getitem__(self, index: int) -> Any:
        return next(islice(self, index, None))

    def __iter__(self) -> Iterator[Any]:
        for portion in self.portions():
            yield from portion.elements()

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def portions(self) -> Iterator[LongList]:
        """Return its elements in portions, each of about a block of text."""
        return (LongList(self._source, [piece]) for piece in self._pieces)

    @property
    def text(self) -> bytes | None:
        """Return a portion as JSON; None if it has a long element."""
        (piece,) = self._pieces
        return None if piece.values else self._source.text(piece, LIST, ())

    def elements(self, *, few: bool = False) -> list[Any]:
        """Return all elements as orjson gives them.

        few: True if few elements are expected: lists in them are LongLists. Default False.

        Raises InvalidInput, also for too many elements if few are expected.
        """
        source, elements = self._source, []
        for piece in self._pieces:
            some = (
                source.read(piece, LIST, deep=0)
                if few
                else source.parse(piece, LIST, piece.values, deep=0)
            )
            if not some:
                raise _no_value(piece)
            elements += some
        return elements


LISTS = (list, LongList)
"""The types of a JSON list after parsing."""


def portions_of(value: list[Any] | LongList) -> Iterator[list[Any]]:
    """Yield the elements of a list, in portions if it is long. Raises InvalidInput."""
    if isinstance(value, LongList):
        yield from (portion.elements() for portion in value.portions())
    else:
        yield value


def few_of(value: list[Any] | LongList) -> list[Any]:
    """Return the elements of a list that should have few.

    Raises InvalidInput, also for too many elements.
    """
    return value.elements(few=True) if isinstance(value, LongList) else value


class _Source:
    """A body, and the placeholders of values that are cut out of a piece's text."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._token = token_hex(16)
        self._members = 0

    def read(self, piece: Section, kind: bytes, *, deep: int) -> Any:
        """Parse a piece, and leave its lists that are not short as LongLists."""
        value = self.parse(piece, kind, self._values(piece), deep=deep)
        self._members += len(value)
        if self._members > MAX_MEMBERS:
            raise InvalidInput(
                f"the body has more than {MAX_MEMBERS} members and elements outside its tensors"
            )
        return value

    def parse(self, piece: Section, kind: bytes, values: Sequence[Value], *, deep: int) -> Any:
        """Parse a piece without `values`, then insert the values."""
        text = self.text(piece, kind, values)
        try:
            found = load_json(text)
        except orjson.JSONDecodeError as error:
            raise broken(error.msg, self._place(piece, values, error.pos)) from None
        if not values:
            return found
        for place, one in enumerate(found) if kind == LIST else list(found.items()):
            if isinstance(place, str) and place.startswith(self._token):
                raise InvalidInput("the body has an object with a key that is too long")
            if isinstance(one, str) and one.startswith(self._token):
                found[place] = self._make(values[int(one[len(self._token) :])], deep)
        return found

    def text(self, piece: Section, kind: bytes, values: Sequence[Value]) -> bytes:
        """Return the text of a piece in brackets, with placeholders for `values`."""
        size = piece.end - piece.start - sum([value.end - value.start for value in values])
        if size > MAX_PIECE_BYTES:
            raise InvalidInput(
                f"the body has more than {MAX_PIECE_BYTES} bytes of one number or space"
            )
        parts, at = [kind], piece.start
        for number, value in enumerate(values):
            parts += [self._body[at : value.start], self._stand_in(number)]
            at = value.end
        return b"".join([*parts, self._body[at : piece.end], CLOSING[kind]])

    def _is_blank(self, piece: Section) -> bool:
        if piece.values or piece.end - piece.start > MAX_PIECE_BYTES:
            return False
        return not self._body[piece.start : piece.end].strip(b" \t\n\r")

    def _stand_in(self, number: int) -> bytes:
        return b'"%b%d"' % (self._token.encode(), number)

    def _values(self, piece: Section) -> Sequence[Value]:
        """Return the cut values of a piece, and its lists and objects that are not short."""
        values: list[Value] = []
        at = piece.start
        for value in (*piece.values, None):
            end = piece.end if value is None else value.start
            if end - at > SHORT_BYTES:
                values += self._short_values(at, end)
            if value is not None:
                values.append(value)
                at = value.end
        return values

    def _short_values(self, start: int, end: int) -> Iterator[Value]:
        _, brackets, depths, _, _ = structure(self._body[start:end])
        if not brackets.size:
            return
        ends = np.flatnonzero(depths == 0)
        begins = np.concatenate([[0], ends[:-1] + 1])
        long = brackets[ends] - brackets[begins] > SHORT_BYTES
        places = np.stack([brackets[begins[long]], brackets[ends[long]] + 1], 1) + start
        for first, after in places.tolist():
            kind = self._body[first : first + 1]
            check_closed(self._body, kind, after)
            yield Value(kind, first, after, [Section(first + 1, after - 1, ())])

    def _make(self, value: Value, deep: int) -> object:
        if value.kind == TEXT:
            return self._read_text(value.start + 1, value.end - 1)
        (first, *rest) = value.pieces
        if value.kind == LIST:
            if not rest and self._is_blank(first):
                return []
            return LongList(self, value.pieces)
        if deep >= MAX_OBJECT_DEPTH:
            raise InvalidInput(f"the body has more than {MAX_OBJECT_DEPTH} nested objects")
        members: dict[str, object] = {}
        for piece in value.pieces:
            some = self.read(piece, OBJECT, deep=deep + 1)
            if rest and not some:
                raise _no_value(piece)
            members |= some
        return members

    def _read_text(self, at: int, end: int) -> str:
        """Read a string in parts."""
        parts = []
        while at < end:
            stop = end if end - at <= BLOCK_BYTES else _between_characters(self._body, at)
            text = b'"' + self._body[at:stop] + b'"'
            try:
                parts.append(orjson.loads(text))
            except orjson.JSONDecodeError as error:
                raise broken(error.msg, at - 1 + error.pos) from None
            at = stop
        return "".join(parts)

    def _place(self, piece: Section, values: Sequence[Value], position: int) -> int:
        """Return the approximate position in the body of a character of a piece's text."""
        place = piece.start - 1 + position
        for number, value in enumerate(values):
            if place < value.start:
                break
            place += value.end - value.start - len(self._stand_in(number))
        return place


_MAX_ESCAPE_BYTES = 12  # bytes of a surrogate pair: two escapes for one character
_CHARACTERS = re.compile(
    rb"""(?: [^\\]++
         | \\ u [dD][89abAB] .{2} \\ u .{4}  # halves of one character
         | \\ u (?! [dD][89abAB] ) .{4}
         | \\ [^u] )*+""",
    re.DOTALL | re.VERBOSE,
)


def _between_characters(body: bytes, at: int) -> int:
    """Return a position about a block after `at`, between two characters or escapes."""
    stop = at + BLOCK_BYTES
    start = at + len(
        body[at : stop - _MAX_ESCAPE_BYTES].rstrip(b"\\")
    )  # this position is not inside an escape
    whole = _CHARACTERS.match(body, start, stop)
    end = whole.end() if whole else stop
    for _ in range(3):
        end -= body[end] & 0xC0 == 0x80
    return end if end > at else stop


def _no_value(piece: Section) -> InvalidInput:
    """Make the error for a comma without a value on one side."""
    return broken("unexpected character, expected a JSON value", piece.end)
