"""Calls of tools in the text of an answer, by the markers of families of models."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cohort.generation import ToolCall, ToolReader
from cohort.generative.chat_template import ChatTemplate

HERMES = "<tool_call>"
MISTRAL = "[TOOL_CALLS]"
LLAMA = "<|python_tag|>"
ARGUMENTS = "[ARGS]"

TOOL_MARKERS = frozenset({HERMES, "</tool_call>", MISTRAL, LLAMA, ARGUMENTS})
"""Texts that are special tokens in some vocabularies, and are needed to find calls."""

MAX_NAME = 256

_NAME = re.compile(r"[A-Za-z_][\w.-]*")


@dataclass(frozen=True, slots=True)
class Style:
    """The way a family of models writes calls.

    marker: The text before a call, or before a list of calls.
    end: The text after a call; "" if there is none.
    bare: True if an answer that begins with an object may be a call, without the marker.
    named: True if the name may stand before the arguments, as in `name[ARGS]{}`.
    """

    marker: str
    end: str = ""
    bare: bool = False
    named: bool = False


def make_tool_reader(template: ChatTemplate | None) -> ToolReader | None:
    """Return a reader for the markers that a template contains; None if it contains none."""
    if template is None:
        return None
    source = template.source
    if HERMES in source:
        return ToolCallReader(Style(HERMES, "</tool_call>"))
    if MISTRAL in source:
        return ToolCallReader(Style(MISTRAL, named=True))
    if LLAMA in source or re.search(r'"parameters\\?": ', source):
        return ToolCallReader(Style(LLAMA, bare=True))
    return None


class ToolCallReader:
    """Finds calls in a text that arrives in parts. Implements `ToolReader`.

    Whatever is not a complete call comes out as text, unchanged, except white space around calls.
    """

    def __init__(self, style: Style) -> None:
        self._style = style
        self._text = ""  # not yet decided
        self._state: Literal["text", "call", "after"] = "text"
        self._bare = style.bare  # an object here is a call
        self._marked = ""  # the marker before the call
        self._scan = _Scan()
        self._found: list[str | ToolCall] = []

    def add(self, text: str) -> Sequence[str | ToolCall]:
        """Return the texts and calls that are complete, in order."""
        self._text += text
        while self._steps[self._state](self):
            """Each step decides something about the text."""
        return self._take()

    def rest(self) -> Sequence[str | ToolCall]:
        """Return what was held back, at the end of the answer."""
        if self._state != "after" or self._text.strip():
            self._put(self._marked + self._text)
        self._text = self._marked = ""
        return self._take()

    def _take(self) -> Sequence[str | ToolCall]:
        found, self._found = self._found, []
        return found

    def _put(self, text: str) -> None:
        if self._found and isinstance(last := self._found[-1], str):
            self._found[-1] = last + text
        elif text:
            self._found.append(text)

    def _read_text(self) -> bool:
        """Send text up to the next marker. Return False if more text is needed."""
        if self._bare:
            start = self._text.lstrip()
            if not start:
                return False
            self._bare = False
            if start[0] == "{":
                self._begin_call("")
                return True
        marker = self._style.marker
        before, found, after = self._text.partition(marker)
        if found:
            self._put(before)
            self._text = after
            self._begin_call(marker)
            return True
        kept = _overlap(self._text, marker)
        self._put(self._text[: len(self._text) - kept])
        self._text = self._text[len(self._text) - kept :]
        return False

    def _begin_call(self, marker: str) -> None:
        self._state, self._marked, self._scan = "call", marker, _Scan()

    def _read_call(self) -> bool:
        """Wait for the whole call, and send it. Return False if more text is needed."""
        start = _start(self._text, self._style)
        if start is None:
            return False
        end = self._scan.end(self._text, start) if start >= 0 else None
        if start >= 0 and end is None:
            return False
        calls = _parse(self._text, start, end, self._style) if end is not None else None
        if end is None or calls is None:  # it is text; there may be another marker in it
            self._put(self._marked)
            self._put(self._text[: end or 0])
            self._text = self._text[end or 0 :]
            self._state = "text"
        else:
            self._found += calls
            self._text = self._text[end:]
            self._state = "after"
        self._marked = ""
        return True

    def _read_after(self) -> bool:
        """Leave out the text that ends a call. Return False if more text is needed."""
        start = self._text.lstrip()
        skipped = [self._style.end, ";"] if self._style.bare else [self._style.end]
        for one in filter(None, skipped):
            if start.startswith(one):
                self._text = start[len(one) :]
                self._bare = self._style.bare
                return True
        expected = (*skipped, self._style.marker)
        if any(one.startswith(start) for one in expected):
            return False
        if start.startswith(self._style.marker):
            self._text = start
        self._state = "text"
        return True

    _steps = {"text": _read_text, "call": _read_call, "after": _read_after}  # noqa: RUF012


class _Scan:
    """Finds the end of a JSON value in a text that grows, each character once.

    seen: The number of characters that were read.
    """

    def __init__(self) -> None:
        self.seen = 0
        self._depth = 0
        self._quoted = self._escaped = False

    def end(self, text: str, start: int) -> int | None:
        """Return the end of the value that begins at `start`; None if it is not complete."""
        for place in range(max(self.seen, start), len(text)):
            letter = text[place]
            if self._escaped:
                self._escaped = False
            elif self._quoted:
                self._escaped = letter == "\\"
                self._quoted = letter != '"'
            elif letter == '"':
                self._quoted = True
            elif letter in "{[":
                self._depth += 1
            elif letter in "}]":
                self._depth -= 1
                if not self._depth:
                    return place + 1
        self.seen = len(text)
        return None


def _start(text: str, style: Style) -> int | None:
    """Return where the value of a call begins; -1: there is none; None: more text is needed."""
    start = len(text) - len(text.lstrip())
    if start == len(text):
        return None if start <= MAX_NAME else -1
    if text[start] in "{[":
        return start
    if style.named and (name := _NAME.match(text, start)):
        rest = text[name.end() :]
        after = name.end() + (len(ARGUMENTS) if rest.startswith(ARGUMENTS) else 0)
        if after < len(text) and text[after] == "{":
            return after
        if len(text) <= MAX_NAME and (not text[after:] or ARGUMENTS.startswith(rest)):
            return None
    return -1


def _parse(text: str, start: int, end: int, style: Style) -> list[ToolCall] | None:
    """Return the calls of a value; None if it is not a call."""
    try:
        value = json.loads(text[start:end])
    except (ValueError, RecursionError):
        return None
    name = text[:start].strip().removesuffix(ARGUMENTS)
    if name:
        return [ToolCall(name, text[start:end])]
    values = value if isinstance(value, list) else [value]
    calls = [_read(one, style) for one in values]
    found = [call for call in calls if call is not None]
    return found if found and len(found) == len(calls) else None


def _read(value: Any, style: Style) -> ToolCall | None:
    if not isinstance(value, Mapping) or not isinstance(name := value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters", None if style.bare else {}))
    if isinstance(arguments, str):
        return ToolCall(name, arguments)
    if not isinstance(arguments, Mapping):
        return None
    return ToolCall(name, json.dumps(arguments, ensure_ascii=False))


def _overlap(text: str, marker: str) -> int:
    """Return the length of the longest end of `text` that begins `marker`."""
    return next(
        (
            count
            for count in range(min(len(marker) - 1, len(text)), 0, -1)
            if text.endswith(marker[:count])
        ),
        0,
    )
