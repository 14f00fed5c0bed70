"""Raw bytes of arrays: little-endian, in row order, as in the Open Inference binary extension.

Four bytes with its length precede each BYTES element. Elements of four and two bits are
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
    """Make an array over `buffer` without copying it; BYTES become str, or numpy's void.

    name: The name of the input, for messages; default "".
    files: True if elements of BYTES are files, which stay bytes; default False.

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
            f"input {quoted(name)} of {datatype} and shape {list(wanted)} needs {expected} bytes, "
            f"got {got}"
        )
    if not expected:
        return np.empty(wanted, dtype)
    if datatype == "BOOL":
        flat = np.frombuffer(buffer, np.uint8)
        if flat.max() > 1:
            index = int((flat > 1).argmax())
            raise InvalidInput(
                f"input {quoted(name)} of BOOL must have only bytes 0 and 1, got {flat[index]} at "
                f"byte {index}"
            )
        return flat.view(np.bool_).reshape(wanted)
    if row.packed:
        return unpack(np.frombuffer(buffer, np.uint8), row, wanted)
    array: Array = np.frombuffer(buffer, dtype).reshape(wanted)
    return array.byteswap() if _SWAPPED else array


TEXTS_AT_ONCE = 4096
"""Elements of BYTES converted in one call, during which no other thread runs."""


def _split(buffer: BytesLike, shape: Shape, name: str, files: bool) -> Array:
    count, end, at = prod(shape), len(buffer), 0
    if count * _LENGTH.size > end:
        raise InvalidInput(
            f"input {quoted(name)} of BYTES and shape {list(shape)} needs at least "
            f"{count * _LENGTH.size} bytes, got {end}"
        )
    data = buffer if buffer.__class__ is bytes else bytes(buffer)  # slices of bytes are fastest
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
    """Make an array of elements that are not text and must all be as long as the first."""
    length = _LENGTH.unpack_from(data)[0]
    if len(data) != count * (_LENGTH.size + length):
        raise _uneven(name)
    elements = np.frombuffer(data, [("length", "<u4"), ("bytes", f"V{length}")])
    if (elements["length"] != length).any():
        raise _uneven(name)
    return np.ascontiguousarray(elements["bytes"])


def from_texts(parts: Sequence[bytes], name: str = "", *, files: bool = False) -> Array:
    """Make a flat array of elements of BYTES: of str, or of numpy's void if one is not UTF-8.

    The runtime's binding accepts bytes only as void elements of one length. It would read bytes in
    an object array as "b'…'".

    name: The name of the input, for messages; default "".
    files: True if the elements are files, which stay bytes and never reach the runtime.

    Raises InvalidInput.
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
        f"input {quoted(name)} has elements that are not UTF-8 and differ in length. The runtime "
        "accepts only one of these per run: send each in a separate request"
    )


def encode_texts(array: Array, check: Callable[[], None] = lambda: None) -> Iterator[list[bytes]]:
    """Yield a flat array's elements of BYTES, at most TEXTS_AT_ONCE at a time.

    check: Called before each group; an error that it raises ends the encoding.
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
    """Return True if `to_bytes` gives a view that keeps at most twice its bytes in memory.

    A view of one row would keep the outputs of its whole batch in memory.
    """
    if array.dtype.kind == "O" or array.dtype in _PACKED or not array.flags.c_contiguous:
        return False
    base = array.base
    return not isinstance(base, np.ndarray) or base.nbytes <= 2 * array.nbytes


def to_bytes(array: Array, check: Callable[[], None] = lambda: None) -> bytes | memoryview:
    """Return an array's bytes: a view if they are stored in the format sent, else a copy.

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
