"""Read the first directory of tags in a TIFF file or in EXIF, with little memory.

https://www.itu.int/itudoc/itu-t/com16/tiff-fx/docs/tiff6.pdf
"""

from __future__ import annotations

import struct
from typing import NamedTuple

ORIENTATION = 274
_SHORT, _LONG, _LONG8 = 3, 4, 16
_FORMS = {_SHORT: "H", _LONG: "I", _LONG8: "Q"}
_SMALL = {1: 1, 2: 1, 6: 1, 7: 1, _SHORT: 2, 8: 2, _LONG: 4, 9: 4, 11: 4, 13: 4}
"""Bytes of an element by its type; an element of any other type counts 8."""


class Tag(NamedTuple):
    """A tag: its type, its number of elements, and its value if it is a single whole number."""

    type: int
    elements: int
    number: int | None

    @property
    def size(self) -> int:
        """The bytes of its elements."""
        return _SMALL.get(self.type, 8) * self.elements


def read_tags(data: bytes) -> dict[int, Tag]:
    """Return the tags of the first directory by number. Raises ValueError."""
    order = {b"II": "<", b"MM": ">"}.get(data[:2])
    if order is None:
        raise ValueError("it begins with no TIFF header")
    try:
        big = struct.unpack_from(f"{order}H", data, 2)[0] == 43
        at = struct.unpack_from(f"{order}Q" if big else f"{order}I", data, 8 if big else 4)[0]
        count = struct.unpack_from(f"{order}Q" if big else f"{order}H", data, at)[0]
        at += 8 if big else 2
        entry = struct.Struct(f"{order}HHQ" if big else f"{order}HHI")
        length = 20 if big else 12
        if at + length * count > len(data):
            raise ValueError("it ends in its tags")
        tags: dict[int, Tag] = {}
        for place in range(at, at + length * count, length):
            number, kind, elements = entry.unpack_from(data, place)
            if number in tags:
                raise ValueError(f"tag {number} is listed twice")
            value = None
            if elements == 1 and kind in _FORMS and (big or kind != _LONG8):
                (value,) = struct.unpack_from(order + _FORMS[kind], data, place + entry.size)
            tags[number] = Tag(kind, elements, value)
    except struct.error:
        raise ValueError("it ends in its tags") from None
    return tags


def orientation_of(exif: bytes) -> int:
    """Return the orientation of a picture, from 1 (upright) to 8; 1 if not in `exif`."""
    try:
        tag = read_tags(exif.removeprefix(b"Exif\0\0")).get(ORIENTATION)
    except ValueError:
        return 1
    return (tag.number or 1) if tag is not None else 1
