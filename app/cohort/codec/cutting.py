"""Cutting of long JSON: numpy finds its quotes and brackets, block by block.

A list, object or string longer than a block is a separate `Value`. Lists and objects consist of
pieces that end at their own commas: at least one in each block that has such a comma. This module
does not validate JSON: each piece is parsed later, without its values, and that rejects bad text.
Up to the first wrong byte, both read the text in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cohort.errors import InvalidInput

BLOCK_BYTES = 1 << 17
"""Bytes searched in one step. A piece is seldom longer than two blocks."""

MAX_DEPTH = 1024
"""Limit on nesting, the same as in orjson."""

LIST, OBJECT, TEXT = b"[", b"{", b'"'
CLOSING = {LIST: b"]", OBJECT: b"}"}

_MAX_STRINGS = 4
"""Strings skipped in the search for a comma: JSON has one around every second string."""


def broken(problem: str, at: int) -> InvalidInput:
    """Make the error for a body that is not JSON; `at` is the approximate byte."""
    return InvalidInput(f"the body is not valid JSON: {problem}, near byte {at}")


class Section(NamedTuple):
    """Bytes from `start` to `end` of a list's elements or an object's members, without brackets.

    values: The values in it that are separate `Value`s.
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
    """The quotes and brackets of a block.

    quotes: The positions at which strings begin and end.
    brackets: The positions of brackets outside strings.
    depths: The depth after each bracket, relative to the start of the block.
    quoted: True if the next block begins in a string.
    escaped: True if the next block begins after a backslash that escapes its first byte.
    """

    quotes: NDArray[np.int64]
    brackets: NDArray[np.int64]
    depths: NDArray[np.int64]
    quoted: bool
    escaped: bool


def cut(body: bytes) -> Sequence[Section]:
    """Cut `body` like the elements of a list; valid JSON is a single element.

    Raises InvalidInput if the body ends within a value, or closes a value that did not begin.
    """
    return _Cutter(body).cut()


class _Open:
    """An open list or object: its complete pieces, and the piece in progress."""

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
        self._text = 0  # start of the string that is open at the start of the block

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
        """Close values that began before the block and end in it."""
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
        """Open values that begin in the block and do not end in it."""
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
        """Cut the innermost open value at its last comma between two positions of the block."""
        container = self._open[-1]
        quotes, text_ends = found.quotes, int(np.searchsorted(found.quotes, before))
        for _ in range(_MAX_STRINGS + 1):
            gap = after
            if text_ends:
                gap = max(after, int(quotes[text_ends - 1]) + 1)
            elif quoted:
                return  # the gap is inside a string
            comma = self._body.rfind(b",", max(at + gap, container.first), at + before)
            if comma >= 0:
                container.cut(comma, comma + 1)
                return
            if text_ends < 2 or gap == after:
                return
            text_ends -= 2
            before = int(quotes[text_ends])


def check_closed(body: bytes, kind: bytes, end: int) -> None:
    """Raise InvalidInput unless the bracket before `end` closes a value of this kind."""
    if body[end - 1 : end] != CLOSING[kind]:
        wanted = CLOSING[kind].decode()
        raise broken(f"unexpected character, expected ',' or '{wanted}'", end - 1)


def structure(block: bytes, quoted: bool = False, escaped: bool = False) -> Structure:
    """Find the quotes and brackets of a block.

    quoted: True if the block begins in a string.
    escaped: True if the block begins after an escaping backslash.
    """
    if escaped:
        block, escaped = b"_" + block[1:], False
    if b"\\" in block:
        block = block.replace(b"\\\\", b"__")
        escaped = block.endswith(b"\\")
        block = block.replace(b'\\"', b"__")
    view = np.frombuffer(block, np.uint8)
    quotes = np.flatnonzero(view == ord('"'))
    # One bit separates [ from { and ] from }; another separates opening from closing.
    brackets = np.flatnonzero(((view | 0x20) - ord("{")) & 0xFD == 0)
    if quotes.size:
        brackets = brackets[(np.searchsorted(quotes, brackets) & 1) == quoted]
    elif quoted:
        brackets = brackets[:0]
    depths = np.cumsum(3 - (view[brackets] & 6).astype(np.int64))
    return Structure(quotes, brackets, depths, bool(quoted ^ (quotes.size & 1)), escaped)
