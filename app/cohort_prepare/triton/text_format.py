"""Parse protobuf's text format, as in `config.pbtxt`, without the message definitions.

Length and depth are limited; parsing takes linear time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from cohort.errors import quoted
from cohort_prepare.failures import Misused

MAX_BYTES = 1 << 20
MAX_DEPTH = 32


class Word(str):
    """A value without quotes: a number, an enum value, true or false."""

    __slots__ = ()


@dataclass(slots=True)
class Message:
    """Values of each field, in file order."""

    fields: dict[str, list[Value]] = field(default_factory=dict)


Value: TypeAlias = "Message | Word | str"


def parse_text_format(text: str, file: str) -> Message:
    """Parse a message; `file` is for error messages. Raises Misused with the line."""
    return _Reader(text, file).message()


_TOKEN = re.compile(
    r"""
      (?P<blank>[ \t\r\f\v]+|\#[^\n]*)
    | (?P<line>\n)
    | (?P<string>"(?:[^"\\\n]|\\[^\n])*"|'(?:[^'\\\n]|\\[^\n])*')
    | (?P<word>-?[A-Za-z0-9_.][A-Za-z0-9_.+-]*)
    | (?P<sign>[{}<>\[\]:;,])
    """,
    re.VERBOSE,
)

_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|[xX]([0-9A-Fa-f]{1,2})|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CLOSES = {"{": "}", "<": ">"}
_END = ""


class _Reader:
    def __init__(self, text: str, file: str) -> None:
        self._file = file
        self._line = 1
        if len(text) > MAX_BYTES:
            raise Misused(f"{file} exceeds the limit of {MAX_BYTES >> 20} MiB")
        self._tokens = self._read(text)
        self._kind, self._token = next(self._tokens)

    def message(self, end: str = _END, depth: int = 0) -> Message:
        """Parse fields up to `end`, which is consumed."""
        if depth > MAX_DEPTH:
            raise self._wrong(f"messages are nested more than {MAX_DEPTH} deep")
        message = Message()
        while self._token != end or self._kind == "string":
            name = self._token
            if self._kind != "word" or not _NAME.fullmatch(name):
                raise self._wrong("expected a field name", found=True)
            self._next()
            colon = self._take(":")
            values = message.fields.setdefault(name, [])
            if self._take("["):
                while not self._take("]"):
                    values.append(self._value(depth))
                    self._take(",")
            elif colon or self._token in _CLOSES:
                values.append(self._value(depth))
            else:
                raise self._wrong(f"expected ':' or '{{' after {quoted(name)}", found=True)
            if not self._take(","):
                self._take(";")
        if end:
            self._next()
        return message

    def _value(self, depth: int) -> Value:
        if self._kind == "string":
            parts = []
            while self._kind == "string":
                parts.append(_ESCAPE.sub(_unescaped, self._token[1:-1]))
                self._next()
            return "".join(parts)
        if self._kind == "word":
            word = Word(self._token)
            self._next()
            return word
        for opens, closes in _CLOSES.items():
            if self._take(opens):
                return self.message(closes, depth + 1)
        raise self._wrong("expected a value", found=True)

    def _take(self, sign: str) -> bool:
        if self._kind == "sign" and self._token == sign:
            self._next()
            return True
        return False

    def _next(self) -> None:
        self._kind, self._token = next(self._tokens)

    def _read(self, text: str) -> Iterator[tuple[str, str]]:
        at = 0
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise self._wrong(f"unexpected {quoted(text[at])}")
            at = match.end()
            kind = match.lastgroup or ""
            if kind == "line":
                self._line += 1
            elif kind != "blank":
                yield kind, match.group()
        yield "end", _END
        raise self._wrong("unexpected end of file")

    def _wrong(self, sentence: str, *, found: bool = False) -> Misused:
        got = ""
        if found:
            got = f", got {quoted(self._token)}" if self._kind != "end" else ", and the file ends"
        return Misused(f"{self._file} line {self._line}: {sentence}{got}")


def _unescaped(match: re.Match[str]) -> str:
    octal, hexadecimal, other = match.groups()
    if other is None:
        return chr(int(octal, 8) if octal else int(hexadecimal, 16))
    return _ESCAPED.get(other, other)
