"""Conversion of long JSON to arrays without a Python object per number, using simdjson.

pysimdjson is faster than orjson here: a [1, 3, 224, 224] image takes 2.3 ms instead of 6.3. In
doubtful cases this module defers to orjson and `cohort.codec.json_tensors`, so results are equal.
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

MIN_BODY_BYTES = 3000  # bytes; below, orjson and struct are at least as fast
MAX_BODY_BYTES = 1 << 20
"""Maximum bytes of a body parsed whole; longer ones are cut first.

Parsing that many bytes takes 2 ms, during which no other thread runs.
A parser keeps its buffers: some 14 bytes for each byte of its longest text, a third of them used.
Allocating them again would cost as much as parsing.
"""

_BOM = b"\xef\xbb\xbf"  # simdjson skips it, orjson rejects it

_idle: deque[Parser] = deque(maxlen=2)  # the interpreter's lock limits parallel decoding


@dataclass(frozen=True, slots=True)
class HeldDocument:
    """A body whose values simdjson holds, and the parser that holds them."""

    body: bytes
    parser: Parser

    def release(self) -> None:
        """Return the parser for reuse. This is safe while a value of this body is still held."""
        _idle.append(self.parser)


def read_document(body: bytes) -> tuple[dict[str, Any], HeldDocument] | None:
    """Return a request's members, with `inputs` and `input` unread; None if orjson must decide.

    Thread-safe: each document has a separate parser. Use its JsonArrays on one thread at a time.
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
    except IndexError:  # no parser is idle
        pass
    except RuntimeError:  # a value of its last document is still held
        pass
    parser = Parser()
    return parser, parser.parse(body)


MAX_PLAIN_BYTES = 10_000
"""Maximum bytes of a list or object, other than the inputs, that is converted at once."""

MAX_LOOKUPS = 64
"""Maximum members of an object: each lookup in simdjson scans all members before it."""


def _members(value: object) -> dict[str, Any] | None:
    """Read an object one level deep; return None if lookup by name would differ from orjson."""
    if not isinstance(value, JsonObject):
        return None
    if len(value) > MAX_LOOKUPS:
        return None
    keys = list(value)
    # For a repeated key, lookup gives the first value and orjson the last. Lookup also cuts a key
    # at its first NUL.
    if len(set(keys)) != len(keys) or "\0" in "".join(keys):
        return None
    return {key: value[key] for key in keys}


def plain(value: object) -> object:
    """Convert a value that simdjson holds to Python lists and dicts."""
    if isinstance(value, JsonArray):
        return value.as_list()
    if isinstance(value, JsonObject):
        return value.as_dict()
    return value


def read_list(datatype: str, text: bytes) -> Array | None:
    """Make an array from the text of a JSON list; return None if orjson must decide."""
    if datatype not in FLOATS and datatype not in INTEGERS:
        return None
    try:
        parser, value = _parse(text)
    except (ValueError, RuntimeError):  # simdjson's own errors
        return None
    array = read_array(datatype, value) if isinstance(value, JsonArray) else None
    del value  # a held value would block the parser's reuse
    _idle.append(parser)
    return array if array is None or lists_in(array.shape) == lists_at_most(text) else None


def read_array(datatype: str, value: JsonArray) -> Array | None:
    """Make an array from a JSON array; return None if orjson must decide.

    The caller must check for lists among numbers, as in `[[1, 2], [3, [4]]]`. There is no such list
    if the text has no more lists than `lists_in` the shape.
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
    """Return the shape; None if lists are empty or differ in length from lists of their depth."""
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
    """Count the lists in nested lists of `shape`."""
    lists, count = 0, 1
    for size in shape:
        lists += count
        count *= size
    return lists


def lists_at_most(body: bytes) -> int:
    """Count the opening brackets, including those in strings."""
    if len(body) < 8000:  # from there on numpy is faster
        return body.count(b"[")
    return int(np.count_nonzero(np.frombuffer(body, np.uint8) == ord("[")))
