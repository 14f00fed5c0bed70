"""Exchange of arrays between two processes, through a file in memory.

Both processes read and write the file. Neither maps it: if the other process truncated a mapped
file, an access would kill the process.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from math import prod
from tempfile import mkstemp
from typing import Any, NamedTuple

import numpy as np

from cohort.tensors import BY_DTYPE, BY_NAME, Array, Arrays

MEMORY_FOLDER = "/dev/shm"  # noqa: S108 - a file there has a name that nobody can guess
MAX_ARRAYS = 1024
MAX_BYTES = 1 << 40
"""A limit for arrays whose size is already bounded."""
MAX_AXES = 64
KEPT_BYTES = 1 << 20
"""Maximum size of a file between two calls."""


class Place(NamedTuple):
    """The place of an array in a file; in JSON it is a list.

    name: The name of the array.
    datatype: The Open Inference name of its datatype.
    shape: The shape of the array.
    offset, size: The bytes of the array. For BYTES, they are the lengths of all elements, 8 bytes
        each, followed by the elements. The length of a text is stored as its complement (negative).
    """

    name: str
    datatype: str
    shape: Sequence[int]
    offset: int
    size: int


class ArrayFile:
    """A file with the arrays of one call.

    path: The file; default None: a new file, which is deleted on `close`.
    """

    def __init__(self, path: str | None = None) -> None:
        self._own = path is None
        if path is None:
            folder = MEMORY_FOLDER if os.path.isdir(MEMORY_FOLDER) else None  # noqa: PTH112
            self._file, self.path = mkstemp(prefix="cohort-", dir=folder)
        else:
            self._file, self.path = os.open(path, os.O_RDWR), path

    def hide(self) -> None:
        """Delete the file's name after the other process opened it: it ends with both processes."""
        if self._own:
            self._own = False
            os.unlink(self.path)  # noqa: PTH108

    def shrink(self) -> None:
        """Release the memory of large arrays."""
        if os.fstat(self._file).st_size > KEPT_BYTES:
            os.ftruncate(self._file, 0)

    def write(self, arrays: Mapping[str, Array], most_bytes: int = MAX_BYTES) -> list[Place]:
        """Write arrays over the earlier ones, and return their places.

        Raises OSError if the file system is full, and ValueError for more than `most_bytes`.
        """
        os.ftruncate(self._file, 0)
        places, end = [], 0
        for name, array in arrays.items():
            parts = _parts(array)
            size = sum(len(part) for part in parts)
            start = end
            if end + size > most_bytes:
                raise ValueError(f"the arrays have more than {most_bytes} bytes")
            for part in parts:
                end += _write(self._file, part, end)
            places.append(Place(name, _datatype(array), array.shape, start, size))
        return places

    def read(self, places: Sequence[Sequence[Any]], most_bytes: int) -> Arrays:
        """Copy arrays from the file. Raises ValueError if invalid or more than `most_bytes`.

        places: The result of `write`, or any untrusted value.
        """
        if not isinstance(places, list) or len(places) > MAX_ARRAYS:
            raise ValueError("these are not the places of arrays")
        there = os.fstat(self._file).st_size
        arrays, left = {}, most_bytes
        for one in places:
            place = _checked(one)
            left -= place.size
            if left < 0:
                raise ValueError(f"the arrays have more than {most_bytes} bytes")
            if place.offset + place.size > there:
                raise ValueError(f"array {place.name} is not in the file")
            data = bytearray(place.size)
            read = os.preadv(self._file, [data], place.offset)
            if read != place.size:
                raise ValueError(f"array {place.name} is cut short")
            arrays[place.name] = _array(place, data)
        return arrays

    def close(self) -> None:
        """Close the file, and delete it if this object created it."""
        os.close(self._file)
        self.hide()


def _datatype(array: Array) -> str:
    """Return the datatype of an array. Raises ValueError if tensors do not have that type."""
    if array.dtype.kind in "OV" and array.dtype not in BY_DTYPE:
        return "BYTES"
    known = BY_DTYPE.get(array.dtype.newbyteorder("="))
    if known is None:
        raise ValueError(f"arrays of {array.dtype} are not tensors")
    return known.name


def _parts(array: Array) -> Sequence[bytes | memoryview]:
    if array.dtype.kind == "V" and array.dtype not in BY_DTYPE:
        elements: list[Any] = [one.tobytes() for one in array.reshape(-1)]
    elif array.dtype.kind != "O":
        flat = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="), copy=False))
        return [flat.reshape(-1).view(np.uint8).data] if array.size else []
    else:
        elements = array.reshape(-1).tolist()
    data = [one if isinstance(one, bytes) else str(one).encode() for one in elements]
    lengths = np.array(
        [len(part) if isinstance(one, bytes) else ~len(part)
         for one, part in zip(elements, data, strict=True)], np.int64,
    )  # fmt: skip
    return [lengths.tobytes(), *data]


def _write(file: int, part: bytes | memoryview, at: int) -> int:
    view, done = memoryview(part), 0
    while done < len(view):
        done += os.pwrite(file, view[done : done + (1 << 30)], at + done)
    return done


def _checked(one: Sequence[Any]) -> Place:
    match one:
        case [str() as name, str() as datatype, [*shape], int() as offset, int() as size]:
            whole = all(type(length) is int and 0 <= length < 1 << 62 for length in shape)
            if whole and len(shape) <= MAX_AXES and datatype in BY_NAME and min(offset, size) >= 0:
                return Place(name, datatype, shape, offset, size)
    raise ValueError("this is not the place of an array")


def _array(place: Place, data: bytearray) -> Array:
    count = prod(place.shape)
    if place.datatype != "BYTES":
        dtype = BY_NAME[place.datatype].dtype
        if place.size != count * dtype.itemsize:
            raise ValueError(f"array {place.name} has {place.size} bytes for {count} elements")
        return np.frombuffer(data, dtype).reshape(place.shape)
    if place.size < count * 8:
        raise ValueError(f"array {place.name} has {place.size} bytes for {count} elements")
    lengths = np.frombuffer(data, np.int64, count).tolist()
    texts = np.empty(count, np.object_)
    at = count * 8
    for index, length in enumerate(lengths):
        size = ~length if length < 0 else length
        part = bytes(data[at : at + size])
        if len(part) != size:
            raise ValueError(f"array {place.name} is cut short")
        texts[index] = part.decode() if length < 0 else part
        at += size
    return texts.reshape(place.shape)
