"""Long JSON text to arrays without a Python object per number, by simdjson.

pysimdjson is worth its place beside orjson: a [1, 3, 224, 224] image takes 2.3 ms instead of 6.3.
What it is not sure of it leaves to orjson and `cohort.codec.json_tensors`, so that every document
gives the same either way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from simdjson import Array as JsonArray
from simdjson import Object as JsonObject
from simdjson import Parser

from cohort.codec.json_tensors import FLOATS, INTEGERS, narrowed
from cohort.tensors import BY_NAME, Array

MIN_BODY_BYTES = 3000  # bytes; below, orjson and struct are as quick or quicker
MAX_BODY_BYTES = 1 << 20
"""Longer ones are cut first. So long a text takes 2 ms, while no other thread runs.

Also, a parser keeps its buffers, some 14 bytes for each of the longest text it read, of which
memory is touched for a third: asking the system for them anew costs as much again as parsing does.
"""

_BOM = b"\xef\xbb\xbf"  # simdjson skips it, orjson refuses it

_idle: deque[Parser] = deque(maxlen=2)  # the interpreter's lock lets few decode at once


@dataclass(frozen=True, slots=True)
class HeldDocument:
    """The body whose values simdjson holds, and the parser it holds them in."""

    body: bytes
    parser: Parser

    def release(self) -> None:
        """Give the parser to the next body. Harmless while a value of this one is still held."""
        _idle.append(self.parser)


def read_document(body: bytes) -> tuple[dict[str, Any], HeldDocument] | None:
    """Give a request's members, with `inputs` and `input` unread; None where orjson must decide.

    Thread-safe: a document has its parser to itself. Its JsonArrays are for one thread at a time.
    """
    if len(body) > MAX_BODY_BYTES or body.startswith(_BOM):
        return None
    try:
        parser, document = _parse(body)
        members = _members(document)
        if members is None or "rows" in members:
            return None
        for key, value in members.items():
            if key == "inputs" and isinstance(value, JsonObject):
                members[key] = _members(value)
                if members[key] is None:
                    return None
            elif key != "input":
                if isinstance(value, JsonArray | JsonObject) and len(value.mini) > MAX_PLAIN_BYTES:
                    return None
                members[key] = plain(value)
    except (ValueError, RuntimeError, KeyError):  # simdjson's own errors
        return None
    return members, HeldDocument(body, parser)


def _parse(body: bytes) -> tuple[Parser, object]:
    try:
        parser = _idle.pop()
        return parser, parser.parse(body)
    except IndexError:  # none is idle
        pass
    except RuntimeError:  # a value of its last document is still held
        pass
    parser = Parser()
    return parser, parser.parse(body)


MAX_PLAIN_BYTES = 10_000
"""Lists and objects of this size, besides the inputs, are made Python's own at once."""

MAX_LOOKUPS = 64
"""Members of an object that are looked up; simdjson looks at all members before each of them."""


def _members(value: object) -> dict[str, Any] | None:
    """Read an object one level deep; None where lookup by name would differ from orjson."""
    if not isinstance(value, JsonObject):
        return None
    if len(value) > MAX_LOOKUPS:
        return None
    keys = list(value)
    # Looked up, a repeated key gives its first value, where orjson gives the last; and a key is
    # read up to its first NUL.
    if len(set(keys)) != len(keys) or "\0" in "".join(keys):
        return None
    return {key: value[key] for key in keys}


def plain(value: object) -> object:
    """Make Python's own lists and dicts of what simdjson holds."""
    if isinstance(value, JsonArray):
        return value.as_list()
    if isinstance(value, JsonObject):
        return value.as_dict()
    return value


def read_list(datatype: str, text: bytes) -> Array | None:
    """Make an array of the text of a JSON list; None where orjson must decide."""
    if datatype not in FLOATS and datatype not in INTEGERS:
        return None
    try:
        parser, value = _parse(text)
    except (ValueError, RuntimeError):  # simdjson's own errors
        return None
    array = read_array(datatype, value) if isinstance(value, JsonArray) else None
    del value  # or the parser could not go on to the next text
    _idle.append(parser)
    return array if array is None or lists_in(array.shape) == lists_at_most(text) else None


def read_array(datatype: str, value: JsonArray) -> Array | None:
    """Make an array of a JSON array; None where orjson must decide.

    One check is left to the caller: an element may be a list itself where others are numbers
    (`[[1, 2], [3, [4]]]`). None is where the text has no more lists than `lists_in` the shape.
    """
    limits = INTEGERS.get(datatype)
    if limits is None and datatype not in FLOATS:
        return None
    shape = _shape(value)
    if shape is None:
        return None
    dtype = BY_NAME[datatype].dtype
    array: Array | None
    try:
        if limits is None:
            array = narrowed(np.frombuffer(value.as_buffer(of_type="d"), np.float64), dtype)
        elif datatype == "UINT64":
            array = np.frombuffer(value.as_buffer(of_type="u"), np.uint64)
        else:
            whole = np.frombuffer(value.as_buffer(of_type="i"), np.int64)
            if datatype != "INT64" and (whole.min() < limits[0] or whole.max() > limits[1]):
                return None
            array = whole.astype(dtype, copy=False)
    except (TypeError, ValueError, RuntimeError):
        return None
    if array is None or array.size != prod(shape):
        return None
    return array.reshape(shape)


def _shape(value: JsonArray) -> list[int] | None:
    """Give the shape as far as every list down to the rows has its neighbours' length."""
    shape = [len(value)]
    level: list[Any] = [value]
    while True:
        if not shape[-1]:
            return None
        first = level[0][0]
        if not isinstance(first, JsonArray):
            return shape
        width = {len(first)}
        try:
            for node in level:
                if set(map(len, node)) != width:
                    return None
            deeper = len(first) > 0 and isinstance(first[0], JsonArray)
            shape.append(len(first))
            if not deeper:
                return shape if len(first) else None
            level = [row for node in level for row in node]
        except TypeError:  # a number has no length
            return None


def lists_in(shape: Sequence[int]) -> int:
    """Count the lists that nested lists of `shape` are made of."""
    lists, count = 0, 1
    for size in shape:
        lists += count
        count *= size
    return lists


def lists_at_most(body: bytes) -> int:
    """Count the brackets that open; those in strings, too."""
    if len(body) < 8000:  # from there on numpy is faster
        return body.count(b"[")
    return int(np.count_nonzero(np.frombuffer(body, np.uint8) == ord("[")))
