"""Long JSON, read in pieces, so that other threads run between them.

orjson and simdjson keep the interpreter's lock from a text's first byte to its last, and what they
make of a text takes up to thirty times its size. So a long text is cut first
(`cohort.codec.cutting`). Its objects are read at once; of its lists those that are long are left as
text, a `LongList`, until somebody reads them, one piece after the other.
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
"""From this size a body is read in pieces."""

SHORT_BYTES = 256
"""Lists in objects, and objects in them, up to this size are read at once."""

MOST_MEMBERS = 10_000
"""Members of all objects, and elements of lists other than tensors, that a long body may have."""

LONGEST_TEXT = 1 << 20
"""Bytes of a piece besides its long values, which has no comma in the last of its blocks."""

MOST_OBJECTS_DEEP = 16
"""Objects in one another; what is read here has four."""


def read_long(body: bytes) -> object:
    """Read a long body: as `orjson.loads`, with LongLists in it. Raises InvalidInput."""
    body = body.strip(b" \t\n\r")
    pieces = cut(body)
    if len(pieces) > 1:
        raise broken("unexpected content after document", pieces[0].end)
    documents = _Source(body).read(pieces[0], LIST, deep=0)
    if len(documents) != 1:  # none, or several that are not apart
        raise InvalidInput("the body is not valid JSON: it has no value")
    return documents[0]


class LongList:
    """A list that is not parsed yet, of one element or more.

    What orjson would make of its elements they are, except that what is longer than a block is a
    LongList itself, or a dict with LongLists in it. Whatever parses raises InvalidInput.
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
        """Its elements, about a block of text at a time."""
        return (LongList(self._source, [piece]) for piece in self._pieces)

    @property
    def text(self) -> bytes | None:
        """A portion as JSON; None where there is a long element in it."""
        (piece,) = self._pieces
        return None if piece.values else self._source.text(piece, LIST, ())

    def elements(self, *, few: bool = False) -> list[Any]:
        """All elements as orjson gives them; where few are expected, lists in them are LongLists.

        Raises InvalidInput, also for very many where few are expected.
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
"""What JSON's lists are read as."""


def portions_of(value: list[Any] | LongList) -> Iterator[list[Any]]:
    """The elements of a list, some at a time where it is long. Raises InvalidInput."""
    if isinstance(value, LongList):
        yield from (portion.elements() for portion in value.portions())
    else:
        yield value


def few_of(value: list[Any] | LongList) -> list[Any]:
    """The elements of a list that should have few. Raises InvalidInput, also for very many."""
    return value.elements(few=True) if isinstance(value, LongList) else value


class _Source:
    """A body, and what stands in the text of a piece for each value that is not in it."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._token = token_hex(16)
        self._members = 0

    def read(self, piece: Section, kind: bytes, *, deep: int) -> Any:
        """Parse a piece, and leave lists that are not short in it as they are."""
        value = self.parse(piece, kind, self._values(piece), deep=deep)
        self._members += len(value)
        if self._members > MOST_MEMBERS:
            raise InvalidInput(
                f"the body has more than {MOST_MEMBERS} members and elements besides its tensors"
            )
        return value

    def parse(self, piece: Section, kind: bytes, values: Sequence[Value], *, deep: int) -> Any:
        """Parse a piece without `values`, and put these in their places."""
        text = self.text(piece, kind, values)
        try:
            found = load_json(text)
        except orjson.JSONDecodeError as error:
            raise broken(error.msg, self._place(piece, values, error.pos)) from None
        if not values:
            return found
        for place, one in enumerate(found) if kind == LIST else list(found.items()):
            if isinstance(place, str) and place.startswith(self._token):
                raise InvalidInput("the body has an object with a key of very many characters")
            if isinstance(one, str) and one.startswith(self._token):
                found[place] = self._make(values[int(one[len(self._token) :])], deep)
        return found

    def text(self, piece: Section, kind: bytes, values: Sequence[Value]) -> bytes:
        """The text of a piece in its brackets, without `values`."""
        size = piece.end - piece.start - sum([value.end - value.start for value in values])
        if size > LONGEST_TEXT:
            raise InvalidInput(
                f"the body has more than {LONGEST_TEXT} bytes of one number or space"
            )
        parts, at = [kind], piece.start
        for number, value in enumerate(values):
            parts += [self._body[at : value.start], self._stand_in(number)]
            at = value.end
        return b"".join([*parts, self._body[at : piece.end], CLOSING[kind]])

    def _is_blank(self, piece: Section) -> bool:
        if piece.values or piece.end - piece.start > LONGEST_TEXT:
            return False
        return not self._body[piece.start : piece.end].strip(b" \t\n\r")

    def _stand_in(self, number: int) -> bytes:
        return b'"%b%d"' % (self._token.encode(), number)

    def _values(self, piece: Section) -> Sequence[Value]:
        """The values of a piece that are cut already, and lists and objects that are not short."""
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
        if deep >= MOST_OBJECTS_DEEP:
            raise InvalidInput(f"the body has more than {MOST_OBJECTS_DEEP} objects in one another")
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
        """About where in the body that character of a piece's text is."""
        place = piece.start - 1 + position
        for number, value in enumerate(values):
            if place < value.start:
                break
            place += value.end - value.start - len(self._stand_in(number))
        return place


_LONGEST_ESCAPE = 12  # bytes, of two that are one character
_CHARACTERS = re.compile(
    rb"""(?: [^\\]++
         | \\ u [dD][89abAB] .{2} \\ u .{4}  # halves of one character
         | \\ u (?! [dD][89abAB] ) .{4}
         | \\ [^u] )*+""",
    re.DOTALL | re.VERBOSE,
)


def _between_characters(body: bytes, at: int) -> int:
    """A place about a block after `at`, where a character ends, that divides no escape."""
    stop = at + BLOCK_BYTES
    start = at + len(
        body[at : stop - _LONGEST_ESCAPE].rstrip(b"\\")
    )  # no escape has its middle here
    whole = _CHARACTERS.match(body, start, stop)
    end = whole.end() if whole else stop
    for _ in range(3):
        end -= body[end] & 0xC0 == 0x80
    return end if end > at else stop


def _no_value(piece: Section) -> InvalidInput:
    """What to say where nothing stands on one side of a comma."""
    return broken("unexpected character, expected a JSON value", piece.end)
