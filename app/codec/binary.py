"""Arrays as raw bytes: little-endian, row after row, as the Open Inference binary extension.

BYTES elements are each preceded by their length in four bytes. Elements of four and two bits are
packed as in an ONNX file, the first in a byte's lowest bits (docs/decisions/0005).
https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol/binary-tensor-data-extension
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from math import prod
from struct import Struct

import numpy as np

from app.codec.json_tensors import Shape, checked_shape
from app.errors import InvalidInput, quoted
from app.tensors import BY_NAME, DATATYPES, Array, pack, unpack

BytesLike = bytes | bytearray | memoryview

_LENGTH = Struct("<I")
_PACKED = {row.dtype: row.bits for row in DATATYPES if row.packed}
_SWAPPED = sys.byteorder != "little"


def from_bytes(buffer: BytesLike, datatype: str, shape: Sequence[int], *, name: str = "") -> Array:
    """Make an array over `buffer` without copying it; of BYTES, an object array of str.

    `name` is the input's, for messages. Raises InvalidInput.
    """
    wanted = checked_shape(name, datatype, shape)
    if datatype == "BYTES":
        return _split(buffer, wanted, name)
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


def _split(buffer: BytesLike, shape: Shape, name: str) -> Array:
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
        array[first : first + TEXTS_AT_ONCE] = decode_texts(parts, name, first)
    if at != end:
        raise InvalidInput(
            f"input {quoted(name)} has {end - at} bytes after its {count} elements of BYTES"
        )
    return array.reshape(shape)


def decode_texts(parts: Sequence[bytes], name: str, first: int) -> list[str]:
    """Give elements of BYTES as text, the first of them being the input's number `first`.

    The runtime takes text only: bytes reach it as "b'…'". Raises InvalidInput.
    """
    try:
        return list(map(bytes.decode, parts))
    except UnicodeDecodeError:
        number = first + next(index for index, part in enumerate(parts) if not _is_text(part))
        raise InvalidInput(
            f"input {quoted(name)} has an element that is not UTF-8, number {number}"
        ) from None


def _is_text(part: bytes) -> bool:
    try:
        part.decode()
    except UnicodeDecodeError:
        return False
    return True


def encode_texts(array: Array) -> Iterator[list[bytes]]:
    """Give a flat array's elements of BYTES, at most TEXTS_AT_ONCE at once."""
    for first in range(0, array.size, TEXTS_AT_ONCE):
        items = array[first : first + TEXTS_AT_ONCE].tolist()
        yield [item if item.__class__ is bytes else item.encode() for item in items]


def _cut_short(name: str, index: int, count: int) -> InvalidInput:
    return InvalidInput(
        f"input {quoted(name)} ends within its element number {index} of {count} of BYTES"
    )


def to_bytes(array: Array) -> bytes | memoryview:
    """Give an array's bytes: a view, not a copy, wherever they are stored as they are sent."""
    if array.dtype.kind == "O":
        length_of = _LENGTH.pack
        return b"".join(
            [
                b"".join([part for text in texts for part in (length_of(len(text)), text)])
                for texts in encode_texts(array.ravel())
            ]
        )
    if array.dtype in _PACKED:
        return pack(array, _PACKED[array.dtype]).data
    if _SWAPPED if array.dtype.isnative else not _SWAPPED:
        array = array.byteswap()
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).data
