"""Arrays as raw bytes: little-endian, row after row, as the Open Inference binary extension.

BYTES elements are each preceded by their length in four bytes. Elements of four and two bits are
packed as in an ONNX file, the first in a byte's lowest bits (docs/contributing/decisions/0005).
https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol/binary-tensor-data-extension
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from math import prod
from struct import Struct

import numpy as np

from cohort.codec.json_tensors import Shape, checked_shape
from cohort.errors import InvalidInput, quoted
from cohort.tensors import BY_NAME, DATATYPES, Array, pack, unpack

BytesLike = bytes | bytearray | memoryview

_LENGTH = Struct("<I")
_PACKED = {row.dtype: row.bits for row in DATATYPES if row.packed}
_SWAPPED = sys.byteorder != "little"


def from_bytes(
    buffer: BytesLike, datatype: str, shape: Sequence[int], *, name: str = "", files: bool = False
) -> Array:
    """Make an array over `buffer` without copying it; of BYTES, one of str, or of numpy's void.

    name: The input's, for messages; default "".
    files: Whether elements of BYTES are files, which stay bytes; default False.

    Raises InvalidInput.
    """
    wanted = checked_shape(name, datatype, shape)
    if datatype == "BYTES":
        return _split(buffer, wanted, name, files)
    row = BY_NAME[datatype]
    dtype = row.dtype
    expected = row.size(prod(wanted))
    got = buffer.nbytes if isinstance(buffer, memoryview) else len(buffer)
    if got != expected:
        raise InvalidInput(
            f"input {quoted(name)} of {datatype} and shape {list(wanted)} takes {expected} bytes, "
            f"got {got}"
        )
    if not expected:
        return np.empty(wanted, dtype)
    if datatype == "BOOL":
        flat = np.frombuffer(buffer, np.uint8)
        if flat.max() > 1:
            index = int((flat > 1).argmax())
            raise InvalidInput(
                f"input {quoted(name)} of BOOL takes bytes of 0 or 1, got {flat[index]} at byte "
                f"{index}"
            )
        return flat.view(np.bool_).reshape(wanted)
    if row.packed:
        return unpack(np.frombuffer(buffer, np.uint8), row, wanted)
    array: Array = np.frombuffer(buffer, dtype).reshape(wanted)
    return array.byteswap() if _SWAPPED else array


TEXTS_AT_ONCE = 4096
"""Elements of BYTES that are converted in one call, which no other thread can interrupt."""


def _split(buffer: BytesLike, shape: Shape, name: str, files: bool) -> Array:
    count, end, at = prod(shape), len(buffer), 0
    if count * _LENGTH.size > end:
        raise InvalidInput(
            f"input {quoted(name)} of BYTES and shape {list(shape)} takes at least "
            f"{count * _LENGTH.size} bytes, got {end}"
        )
    data = buffer if buffer.__class__ is bytes else bytes(buffer)  # its parts are the quickest
    array = np.empty(count, np.object_)
    length_at = _LENGTH.unpack_from
    for first in range(0, count, TEXTS_AT_ONCE):
        parts: list[bytes] = []
        for index in range(first, min(first + TEXTS_AT_ONCE, count)):
            start = at + _LENGTH.size
            if start > end:
                raise _cut_short(name, index, count)
            at = start + length_at(data, at)[0]
            if at > end:
                raise _cut_short(name, index, count)
            parts.append(data[start:at])
        try:
            array[first : first + TEXTS_AT_ONCE] = (
                parts if files else list(map(bytes.decode, parts))
            )
        except UnicodeDecodeError:
            return _split_even(data, count, name).reshape(shape)
    if at != end:
        raise InvalidInput(
            f"input {quoted(name)} has {end - at} bytes after its {count} elements of BYTES"
        )
    return array.reshape(shape)


def _split_even(data: bytes, count: int, name: str) -> Array:
    """Make an array of elements that are not text, which are all as long as the first."""
    length = _LENGTH.unpack_from(data)[0]
    if len(data) != count * (_LENGTH.size + length):
        raise _uneven(name)
    elements = np.frombuffer(data, [("length", "<u4"), ("bytes", f"V{length}")])
    if (elements["length"] != length).any():
        raise _uneven(name)
    return np.ascontiguousarray(elements["bytes"])


def from_texts(parts: Sequence[bytes], name: str = "", *, files: bool = False) -> Array:
    """Make a flat array of elements of BYTES: of str, or of numpy's void where one is not UTF-8.

    The runtime's binding takes bytes only so, and then all of one length: bytes in an object array
    would reach it as "b'…'". `name` is the input's, for messages; `files`: whether they are files,
    which never reach the runtime, and stay bytes. Raises InvalidInput.
    """
    array = np.empty(len(parts), np.object_)
    if files:
        array[:] = parts
        return array
    try:
        for first in range(0, len(parts), TEXTS_AT_ONCE):
            some = parts[first : first + TEXTS_AT_ONCE]
            array[first : first + TEXTS_AT_ONCE] = list(map(bytes.decode, some))
    except UnicodeDecodeError:
        length = len(parts[0])
        if any(len(part) != length for part in parts):
            raise _uneven(name) from None
        return np.frombuffer(b"".join(parts), f"V{length}")
    return array


def _uneven(name: str) -> InvalidInput:
    return InvalidInput(
        f"input {quoted(name)} has elements that are not UTF-8 and not all of one length, which "
        "the runtime takes only one at a time: send each in a request of its own"
    )


def encode_texts(array: Array, check: Callable[[], None] = lambda: None) -> Iterator[list[bytes]]:
    """Give a flat array's elements of BYTES, at most TEXTS_AT_ONCE at once.

    check: Called before each of them; what it raises ends this.
    """
    for first in range(0, array.size, TEXTS_AT_ONCE):
        check()
        items = array[first : first + TEXTS_AT_ONCE].tolist()
        yield [item if item.__class__ is bytes else item.encode() for item in items]


def _cut_short(name: str, index: int, count: int) -> InvalidInput:
    return InvalidInput(
        f"input {quoted(name)} ends within its element number {index} of {count} of BYTES"
    )


def is_own_view(array: Array) -> bool:
    """Whether `to_bytes` copies nothing, and gives what keeps no more than these bytes: one row of
    a batch's outputs keeps all of them.
    """
    if array.dtype.kind == "O" or array.dtype in _PACKED or not array.flags.c_contiguous:
        return False
    base = array.base
    return not isinstance(base, np.ndarray) or base.nbytes <= 2 * array.nbytes


def to_bytes(array: Array, check: Callable[[], None] = lambda: None) -> bytes | memoryview:
    """Give an array's bytes: a view, not a copy, wherever they are stored as they are sent.

    check: As for `encode_texts`.
    """
    if array.dtype.kind == "O":
        length_of = _LENGTH.pack
        return b"".join(
            [
                b"".join([part for text in texts for part in (length_of(len(text)), text)])
                for texts in encode_texts(array.ravel(), check)
            ]
        )
    if array.dtype in _PACKED:
        return pack(array, _PACKED[array.dtype]).data
    if _SWAPPED if array.dtype.isnative else not _SWAPPED:
        array = array.byteswap()
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).data
