"""Conversion of arrays to JSON: numbers, booleans and strings in nested lists."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from cohort.codec.binary import TEXTS_AT_ONCE
from cohort.codec.json_tensors import SHORT_ARRAY, at_place
from cohort.errors import InferenceFailed, quoted
from cohort.tensors import DATATYPES, Array

BY_ITSELF = tuple(np.dtype(name) for name in ("f4", "i8", "f8", "i4", "?", "u1", "i1", "u4", "u8"))
"""Datatypes that orjson writes directly, most common first. It writes NaN and infinity as null."""


def encode_tensor(name: str, array: Array) -> object:
    """Return a value that `orjson.dumps(…, option=OPT_SERIALIZE_NUMPY)` writes as nested lists.

    The value is the array itself if orjson accepts it. Raises InferenceFailed for values that JSON
    cannot carry: NaN, infinity and bytes that are not UTF-8.
    """
    dtype = array.dtype
    kind = dtype.kind
    if kind == "O":
        return _strings(name, array)
    if kind in "fV":  # most ml_dtypes are of kind V
        if dtype.itemsize < 4:
            array = array.astype(_WRITTEN_AS[dtype])
        if not _finite(array):
            index = int(np.isfinite(array).argmin())
            raise _unwritable(name, f"has {array.ravel()[index]!s}{at_place(index, array.shape)}")
    if not array.ndim:
        # ONNX Runtime's INT64 is numpy's longlong, which orjson accepts only in arrays.
        return array[()] if array.dtype.kind == "f" else array.item()
    if not dtype.isnative:
        array = array.astype(dtype.newbyteorder("="))
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def encode_parts(name: str, array: Array) -> object:
    """Encode as `encode_tensor` does, for `LongParts.put`; long arrays of text convert later."""
    if array.dtype.kind == "O" and array.size > TEXTS_AT_ONCE:
        whole = array.shape

        def make(part: Array, first: int) -> Any:
            return _strings(name, part, first, whole)

        return LongTexts(array, make)
    return encode_tensor(name, array)


class LongTexts:
    """A list of the texts of an array, whose elements are converted during iteration.

    array: An array of at least one dimension.
    make: Converts a part of the array to lists, given the part and the index of its first element.
    """

    def __init__(self, array: Array, make: Callable[[Array, int], Any], first: int = 0) -> None:
        self._array, self._make, self._first = array, make, first

    @property
    def size(self) -> int:
        """Return the number of texts."""
        return self._array.size

    def __iter__(self) -> Iterator[Any]:
        array, at = self._array, self._first
        row = array.size // len(array)
        if row > TEXTS_AT_ONCE:
            for one in array:
                yield LongTexts(one, self._make, at)
                at += row
            return
        step = TEXTS_AT_ONCE // row
        for start in range(0, len(array), step):
            yield from self._make(array[start : start + step], at + start * row)


WRITTEN_AT_ONCE = 1 << 18
"""Bytes of an array written at once. No other thread runs while orjson writes."""

_WEIGHT_AT_ONCE = WRITTEN_AT_ONCE >> 5
_LONG_LIST = 64  # elements


class LongParts:
    """The long values of a document, written in parts before the document.

    In the document, a NUL replaces each of them; JSON never contains one.

    check: Called for each part; an error that it raises ends the writing. Default: no check.
    """

    def __init__(self, check: Callable[[], None] = lambda: None) -> None:
        self._parts: list[list[bytes]] = []
        self._check = check

    def put(self, value: Any) -> Any:
        """Return the document's stand-in for a value of `encode_parts`; a short value is returned.

        Put values in the order in which the document has them.
        """
        if isinstance(value, np.ndarray):
            return self._put(_written(value)) if value.nbytes > WRITTEN_AT_ONCE else value
        if isinstance(value, LongTexts):
            return self._put(_written_list(value))
        if isinstance(value, list) and (len(value) > _LONG_LIST or _weight(value) > _LONG_LIST):
            return self._put(_written_list(value))
        return value

    def put_rows(self, rows: Iterator[Any]) -> Any:
        """Put a list whose elements are made while it is written."""
        return self._put(_written_list(rows))

    def dump(self, document: Any) -> bytes:
        """Write the document."""
        text = _dumps(document)
        if not self._parts:
            return text
        first, *rest = text.split(b"\0")
        pieces = [first]
        for part, after in zip(self._parts, rest, strict=True):
            pieces += part
            pieces.append(after)
        return b"".join(pieces)

    def _put(self, texts: Iterator[bytes]) -> orjson.Fragment:
        parts: list[bytes] = []
        for text in texts:
            self._check()
            parts.append(text)
        self._parts.append(parts)
        return orjson.Fragment(b"\0")


def _dumps(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


def _weight(value: Any) -> int:
    """Estimate the cost of writing a value, in numbers."""
    if isinstance(value, str):
        return 1 + (len(value) >> 5)
    if isinstance(value, list):
        return len(value) * _weight(value[0]) if value else 1
    if isinstance(value, LongTexts):
        return value.size
    if isinstance(value, dict):
        return sum(map(_weight, value.values()))
    return 1 + value.nbytes // 8 if isinstance(value, np.ndarray) else 1


def _written_list(values: Iterable[Any]) -> Iterator[bytes]:
    """Write a list in parts."""
    before = b"["
    for some in _some_of(values):
        yield before
        one = some[0]
        many = isinstance(one, LongTexts)
        if many or (len(some) == 1 and isinstance(one, list) and _weight(one) > _WEIGHT_AT_ONCE):
            yield from _written_list(one)
        else:
            yield _dumps(some)[1:-1]
        before = b","
    yield b"]" if before == b"," else b"[]"


def _some_of(values: Iterable[Any]) -> Iterator[list[Any]]:
    some: list[Any] = []
    weight = 0
    for value in values:
        one = _weight(value)
        if some and weight + one > _WEIGHT_AT_ONCE:
            yield some
            some, weight = [], 0
        some.append(value)
        weight += one
    if some:
        yield some


def _written(array: Array) -> Iterator[bytes]:
    """Write an array of one dimension or more, in parts."""
    if array.nbytes <= WRITTEN_AT_ONCE:
        yield _dumps(array)
        return
    row = array.nbytes // len(array)
    yield b"["
    if row > WRITTEN_AT_ONCE:
        for number, one in enumerate(array):
            yield b"," if number else b""
            yield from _written(one)
    else:
        step = WRITTEN_AT_ONCE // max(row, 1)
        for at in range(0, len(array), step):
            part = _dumps(array[at : at + step])
            yield part[1:-1] if not at else b"," + part[1:-1]
    yield b"]"


# The datatypes that replace small floats and packed types, which orjson does not support.
_WRITTEN_AS: Mapping[np.dtype[np.generic], type[np.generic]] = {
    row.dtype: np.int8 if row.kind == "int" else np.float32
    for row in DATATYPES
    if row.packed or (row.kind == "float" and row.bits < 32)
}


def _finite(array: Array) -> bool:
    # A sum of squares is finite only if every term is. It may overflow with finite terms,
    # so the exact test follows.
    return (
        array.size <= SHORT_ARRAY and bool(np.vdot(array, array) < np.inf)  # type: ignore[arg-type]
    ) or bool(np.isfinite(array).all())


def _strings(name: str, array: Array, first: int = 0, whole: Sequence[int] = ()) -> Any:
    """Make lists of texts; `array` is the part from `first` on of an array of shape `whole`."""
    texts = np.empty(array.size, np.object_)
    for index, item in enumerate(array.ravel().tolist()):
        try:
            text = item if item.__class__ is str else item.decode()
            text.encode()
        except UnicodeError:
            raise _unwritable(
                name, f"has bytes that are not UTF-8{at_place(first + index, whole or array.shape)}"
            ) from None
        texts[index] = text
    return texts.reshape(array.shape).tolist()


class NotInJson(InferenceFailed):
    """An output has NaN or infinity."""

    @property
    def code(self) -> str:
        """The error code of a failed run."""
        return InferenceFailed.__name__


def _unwritable(name: str, problem: str) -> NotInJson:
    return NotInJson(
        f"output {quoted(name)} {problem}, which JSON cannot carry; request it in binary form",
        blames_input=False,
    )
