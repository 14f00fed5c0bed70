"""Where long JSON can be cut: numpy finds its quotes and brackets, block by block.

A list, object or string of more than a block is a `Value` of its own. Lists and objects have
pieces, which end at commas of theirs, one in each block at least where there is one. Whether the
text is JSON is not decided here: the text of a piece without its values decides, parsed by itself.
Up to the first byte that is wrong, both read the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cohort.errors import InvalidInput

BLOCK_BYTES = 1 << 17
"""Bytes that are looked at together. A piece is seldom longer than two blocks."""

MAX_DEPTH = 1024
"""orjson's own."""

LIST, OBJECT, TEXT = b"[", b"{", b'"'
CLOSING = {LIST: b"]", OBJECT: b"}"}

_MOST_STRINGS = 4
"""Strings that are skipped in search of a comma: JSON has one around every second string."""


def broken(problem: str, at: int) -> InvalidInput:
    """What to say of a body that is not JSON, and at about which byte that is."""
    return InvalidInput(f"the body is not valid JSON: {problem}, near byte {at}")


class Section(NamedTuple):
    """Bytes from `start` to `end` of a list's elements or an object's members, without brackets.

    values: The values among them that are cut themselves.
    """

    start: int
    end: int
    values: Sequence[Value]


class Value(NamedTuple):
    """The bytes from `start` to `end`, brackets or quotes included. A TEXT has no pieces."""

    kind: bytes
    start: int
    end: int
    pieces: Sequence[Section]


class Structure(NamedTuple):
    """What is found in a block.

    quotes: Where strings begin and end.
    brackets: Where brackets are that are not in strings.
    depths: How much deeper than the block's beginning it is after each bracket.
    quoted, escaped: Whether the next block begins in a string, and behind a backslash that counts.
    """

    quotes: NDArray[np.int64]
    brackets: NDArray[np.int64]
    depths: NDArray[np.int64]
    quoted: bool
    escaped: bool


def cut(body: bytes) -> Sequence[Section]:
    """Cut `body`, as if it were the elements of a list: JSON is a single one.

    Raises InvalidInput where it ends within a value, or one ends that did not begin.
    """
    return _Cutter(body).cut()


class _Open:
    """A list or object that has not ended: its pieces, and the one that is not complete."""

    __slots__ = ("first", "kind", "pieces", "start", "values")

    def __init__(self, kind: bytes, start: int) -> None:
        self.kind = kind
        self.start = start
        self.first = start + 1
        self.values: list[Value] = []
        self.pieces: list[Section] = []

    def cut(self, at: int, after: int) -> None:
        self.pieces.append(Section(self.first, at, self.values))
        self.first, self.values = after, []


class _Cutter:
    def __init__(self, body: bytes) -> None:
        self._body = body
        self._open = [_Open(LIST, -1)]
        self._text = 0  # where the string began that the block begins in

    def cut(self) -> Sequence[Section]:
        body, quoted, escaped = self._body, False, False
        for at in range(0, len(body), BLOCK_BYTES):
            found = structure(body[at : at + BLOCK_BYTES], quoted, escaped)
            if quoted and found.quotes.size:
                self._end_text(at + int(found.quotes[0]) + 1)
            if found.brackets.size:
                lowest = min(0, int(found.depths.min()))
                self._close(at, found, lowest)
                self._begin(at, found, lowest, quoted)
            size = min(BLOCK_BYTES, len(body) - at)
            if found.quoted and found.quotes.size:
                size = int(found.quotes[-1])
                self._text = at + size
            if not found.quoted or found.quotes.size:
                after = int(found.brackets[-1]) + 1 if found.brackets.size else 0
                self._cut_last(at, found, quoted, after, size)
            quoted, escaped = found.quoted, found.escaped
        if quoted or len(self._open) > 1:
            raise broken("unexpected end of data", len(body))
        (whole,) = self._open
        whole.cut(len(body), len(body))
        return whole.pieces

    def _end_text(self, end: int) -> None:
        if end - self._text > BLOCK_BYTES:
            self._open[-1].values.append(Value(TEXT, self._text, end, ()))

    def _close(self, at: int, found: Structure, lowest: int) -> None:
        """End what was open before the block, and ends in it."""
        if not lowest:
            return
        fallen = -np.minimum.accumulate(found.depths)
        for place in np.searchsorted(fallen, np.arange(1, -lowest + 1)).tolist():
            end = at + int(found.brackets[place]) + 1
            closed = self._open.pop()
            if not self._open:
                raise broken("unexpected content after document", end - 1)
            check_closed(self._body, closed.kind, end)
            if end - closed.start > BLOCK_BYTES:
                closed.cut(end - 1, end)
                value = Value(closed.kind, closed.start, end, closed.pieces)
                self._open[-1].values.append(value)

    def _begin(self, at: int, found: Structure, lowest: int, quoted: bool) -> None:
        """Begin what is still open after the block."""
        deepest = int(found.depths[-1])
        if len(self._open) + int(found.depths.max()) - lowest > MAX_DEPTH + 1:
            raise broken("depth limit exceeded", at)
        if deepest == lowest:
            return
        rest = np.minimum.accumulate(found.depths[::-1])[::-1]
        for place in np.searchsorted(rest, np.arange(lowest + 1, deepest + 1)).tolist():
            start = int(found.brackets[place])
            after = int(found.brackets[place - 1]) + 1 if place else 0
            self._cut_last(at, found, quoted, after, start)
            kind = self._body[at + start : at + start + 1]
            self._open.append(_Open(kind, at + start))

    def _cut_last(self, at: int, found: Structure, quoted: bool, after: int, before: int) -> None:
        """Cut what is open last at its last comma between two places of the block."""
        container = self._open[-1]
        quotes, text_ends = found.quotes, int(np.searchsorted(found.quotes, before))
        for _ in range(_MOST_STRINGS + 1):
            gap = after
            if text_ends:
                gap = max(after, int(quotes[text_ends - 1]) + 1)
            elif quoted:
                return  # this gap is within a string
            comma = self._body.rfind(b",", max(at + gap, container.first), at + before)
            if comma >= 0:
                container.cut(comma, comma + 1)
                return
            if text_ends < 2 or gap == after:
                return
            text_ends -= 2
            before = int(quotes[text_ends])


def check_closed(body: bytes, kind: bytes, end: int) -> None:
    """Raise InvalidInput unless what ends before `end` ends by the bracket of its kind."""
    if body[end - 1 : end] != CLOSING[kind]:
        wanted = CLOSING[kind].decode()
        raise broken(f"unexpected character, expected ',' or '{wanted}'", end - 1)


def structure(block: bytes, quoted: bool = False, escaped: bool = False) -> Structure:
    """Find what is in a block that begins in a string or not, and behind a backslash or not."""
    if escaped:
        block, escaped = b"_" + block[1:], False
    if b"\\" in block:
        block = block.replace(b"\\\\", b"__")
        escaped = block.endswith(b"\\")
        block = block.replace(b'\\"', b"__")
    view = np.frombuffer(block, np.uint8)
    quotes = np.flatnonzero(view == ord('"'))
    # [ and { differ from each other in the same bit as ] and }, and these from those in another.
    brackets = np.flatnonzero(((view | 0x20) - ord("{")) & 0xFD == 0)
    if quotes.size:
        brackets = brackets[(np.searchsorted(quotes, brackets) & 1) == quoted]
    elif quoted:
        brackets = brackets[:0]
    depths = np.cumsum(3 - (view[brackets] & 6).astype(np.int64))
    return Structure(quotes, brackets, depths, bool(quoted ^ (quotes.size & 1)), escaped)
