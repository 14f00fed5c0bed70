"""Conversion of LongLists to arrays, piece by piece: a list of millions never exists."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from cohort.codec import simdjson_reader
from cohort.codec.base64_json import Base64Texts
from cohort.codec.json_tensors import (
    ALL,
    MAX_RANK,
    Among,
    check_data,
    check_texts,
    checked_shape,
    filled,
    from_data,
    from_lists,
    take_apart,
    to_array,
    too_deep,
    uneven,
    uneven_depth,
)
from cohort.codec.long_json import LongList
from cohort.codec.missing_values import Missing
from cohort.tensors import BY_NAME, Array, TensorSpec


def from_json(spec: TensorSpec, value: object) -> Array:
    """Make an array as `from_lists` does; also accept LongLists, and base64 instead of text."""
    if isinstance(value, LongList):
        rows = rows_of(spec)
        rows.add_list(value)
        return fitted(spec, rows.array())
    if spec.datatype != "BYTES":
        return from_lists(spec, value)
    texts = Base64Texts(spec.name, files=spec.files)
    array = texts.finish(from_lists(spec, texts.read(value)))
    return array if array.ndim else array.reshape((1,) * len(spec.shape or ()))  # a single text


def fitted(spec: TensorSpec, array: Array) -> Array:
    """Return `array`; an array without elements gets all dimensions of `spec`."""
    return array if array.size else array.reshape(filled(array.shape, spec))


def decode_tensor(
    name: str,
    datatype: str,
    shape: Sequence[int],
    data: object,
    missing: Missing = None,
    *,
    files: bool = False,
) -> Array:
    """Make an array as `from_data` does; also accept LongLists.

    files: True if elements of BYTES are files, which may be base64. Default False.
    """
    texts = Base64Texts(name, files=True) if files else None
    if not isinstance(data, LongList):
        values = data if texts is None else texts.read(data)
        return from_data(name, datatype, shape, values, missing)
    wanted = checked_shape(name, datatype, shape)
    rows = Rows(name, datatype, texts=texts, missing=missing)
    rows.add_list(data)
    array = rows.array()
    check_data(name, wanted, array.shape, array.size)
    return array.reshape(wanted)


def rows_of(spec: TensorSpec) -> Rows:
    """Return empty rows for an input in which any text may be base64."""
    is_text = spec.datatype == "BYTES"
    texts = Base64Texts(spec.name, files=spec.files) if is_text else None
    return Rows(spec.name, spec.datatype, texts=texts, missing=spec.missing)


class Rows:
    """An array under construction: elements of a list, added in groups, all of one shape.

    name, datatype: The name and datatype of the input.
    among: The position of the list and the shape of its elements; default: a whole list, any shape.
    texts: The reader of base64; default None: base64 is not accepted.
    missing: The value that replaces null; default None: NaN for floats.
    """

    def __init__(
        self,
        name: str,
        datatype: str,
        among: Among = ALL,
        texts: Base64Texts | None = None,
        missing: Missing = None,
    ) -> None:
        self._name = name
        self._datatype = datatype
        self._texts = texts
        self._missing = missing
        self._among = among
        self._parts: list[Array] = []

    def add(self, elements: list[Any]) -> None:
        """Add elements. Raises InvalidInput."""
        if self._texts is not None:
            elements = self._texts.read(elements)
        start = 0
        for index, element in enumerate(elements):
            if element.__class__ is LongList:
                self._add_short(elements[start:index])
                self._add_long(element)
                start = index + 1
        self._add_short(elements[start:] if start else elements)

    def add_list(self, value: LongList) -> None:
        """Add the elements of a list, in portions. Raises InvalidInput."""
        for portion in value.portions():
            text = portion.text
            if text is None or not self._add_text(text):
                self.add(portion.elements())

    def _add_text(self, text: bytes) -> bool:
        """Add the elements of a JSON list; add nothing and return False if `add` must decide."""
        array = simdjson_reader.read_list(self._datatype, text)
        if array is None or self._among.like not in {None, array.shape[1:]}:
            return False
        self._append(array)
        return True

    def array(self) -> Array:
        """Return the array of all elements. Add nothing after this call."""
        whole = self._joined()
        return whole if self._texts is None else self._texts.finish(whole)

    def _joined(self) -> Array:
        parts = self._parts
        if len(parts) == 1:
            return parts[0]
        shape = (self._among.first, *(self._among.like or ()))
        whole = np.empty(shape, BY_NAME[self._datatype].dtype)
        at = 0
        parts.reverse()
        while parts:  # frees each part after its copy
            part = parts.pop()
            whole[at : at + len(part)] = part
            at += len(part)
        return whole

    def _add_short(self, elements: list[Any]) -> None:
        if elements:
            shape, leaves = take_apart(self._name, elements, self._among)
            self._append(
                to_array(self._name, self._datatype, leaves, shape, self._among, self._missing)
            )

    def _add_long(self, element: LongList) -> None:
        among, name = self._among, self._name
        like = among.like
        if like == ():
            raise uneven_depth(name, among, 0, (1,))
        if like is not None and not like[0]:  # a long element is never empty
            raise uneven(name, among, 0, len(element), 0, (1,))
        if len(among.outer) + 2 > MAX_RANK:
            raise too_deep(name)
        inner = Among((*among.outer, among.first), 0, None if like is None else like[1:])
        rows = Rows(name, self._datatype, inner, self._texts, self._missing)
        rows.add_list(element)
        array = rows._joined()
        if like is not None and len(array) != like[0]:
            raise uneven(name, among, like[0], len(array), 0, (1,))
        self._append(array[np.newaxis])

    def _append(self, part: Array) -> None:
        self._parts.append(part)
        first, like = self._among.first + len(part), part.shape[1:]
        self._among = self._among._replace(first=first, like=like)
        if self._datatype == "BYTES":
            check_texts(self._name, first * prod(like))
