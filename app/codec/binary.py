"""Arrays as raw bytes: little-endian, row after row, as the Open Inference binary extension.

BYTES elements are each preceded by their length in four bytes. Elements of four and two bits are
packed as in an ONNX file, the first in a byte's lowest bits (docs/decisions/0005).
https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol/binary-tensor-data-extension
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
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
        return _split(memoryview(buffer).cast("B"), wanted, name)
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


def _split(buffer: memoryview, shape: Shape, name: str) -> Array:
    count, end, at = prod(shape), len(buffer), 0
    if count * _LENGTH.size > end:
        raise InvalidInput(
            f"input {quoted(name)} of BYTES and shape {list(shape)} takes at least "
            f"{count * _LENGTH.size} bytes, got {end}"
        )
    array = np.empty(count, np.object_)
    for index in range(count):
        start = at + _LENGTH.size
        if start > end:
            raise _cut_short(name, index, count)
        at = start + _LENGTH.unpack_from(buffer, at)[0]
        if at > end:
            raise _cut_short(name, index, count)
        try:
            array[index] = str(buffer[start:at], "utf-8")
        except UnicodeDecodeError:
            # The runtime takes text only: bytes reach it as "b'…'".
            raise InvalidInput(
                f"input {quoted(name)} has an element that is not UTF-8, number {index}"
            ) from None
    if at != end:
        raise InvalidInput(
            f"input {quoted(name)} has {end - at} bytes after its {count} elements of BYTES"
        )
    return array.reshape(shape)


def _cut_short(name: str, index: int, count: int) -> InvalidInput:
    return InvalidInput(
        f"input {quoted(name)} ends within its element number {index} of {count} of BYTES"
    )


def to_bytes(array: Array) -> bytes | memoryview:
    """Give an array's bytes: a view, not a copy, wherever they are stored as they are sent."""
    if array.dtype.kind == "O":
        parts = []
        for item in array.ravel().tolist():
            data = item if isinstance(item, bytes) else item.encode()
            parts += [_LENGTH.pack(len(data)), data]
        return b"".join(parts)
    if array.dtype in _PACKED:
        return pack(array, _PACKED[array.dtype]).data
    if _SWAPPED if array.dtype.isnative else not _SWAPPED:
        array = array.byteswap()
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).data
