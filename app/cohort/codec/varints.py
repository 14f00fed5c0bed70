"""Conversion between arrays and protobuf's packed numbers, without a Python object for each.

https://protobuf.dev/programming-guides/encoding. All functions work in parts: a long array neither
takes many times its memory nor holds the interpreter's lock for long.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cohort.codec.binary import BytesLike
from cohort.errors import InvalidInput
from cohort.tensors import Array

PACKED_AT_ONCE = 1 << 18
MAX_VARINT_BYTES = 10  # bytes

# The types that protobuf fields hold: fixed-size numbers unchanged, all others as varints.
_FIXED: Mapping[str, str] = {"FP32": "<f4", "FP64": "<f8"}
_WIDE: Mapping[str, type[np.generic]] = {
    **dict.fromkeys(("INT8", "INT16", "INT32"), np.int32),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), np.uint32),
    "INT64": np.int64,
    "UINT64": np.uint64,
    "BOOL": np.bool_,
}


def unpack_values(data: BytesLike, datatype: str) -> Array:
    """Make a flat array from a packed field, in the field's own type: INT8 becomes int32.

    Raises InvalidInput for malformed data.
    """
    if (fixed := _FIXED.get(datatype)) is not None:
        if len(data) % np.dtype(fixed).itemsize:
            raise _malformed(datatype)
        return np.frombuffer(data, fixed)
    raw = np.frombuffer(data, np.uint8)
    if raw.size and raw[-1] >= 0x80:
        raise _malformed(datatype)
    wide = _WIDE[datatype]
    array = np.empty(_count(raw), wide)
    at = 0
    for part in _parts(raw, datatype):
        words = _words(part, datatype)
        # Longer numbers are cut to the field's bits. For a bool, any number other than 0 is true.
        array[at : at + words.size] = words if wide is np.bool_ else words.astype(wide)
        at += words.size
    return array


def pack_values(array: Array, datatype: str) -> bytes:
    """Pack a flat array for the field of its datatype."""
    if (fixed := _FIXED.get(datatype)) is not None:
        return array.astype(fixed, copy=False).tobytes()
    if datatype == "BOOL":
        return array.astype(np.uint8).tobytes()
    step = PACKED_AT_ONCE // 8
    return b"".join(
        _bytes_of(array[at : at + step].astype(np.int64).view(np.uint64))
        for at in range(0, array.size, step)
    )


def varint(number: int) -> bytes:
    """Encode one number >= 0 as a varint."""
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _count(raw: NDArray[np.uint8]) -> int:
    return sum(
        int(np.count_nonzero(raw[at : at + PACKED_AT_ONCE] < 0x80))
        for at in range(0, raw.size, PACKED_AT_ONCE)
    )


def _parts(raw: NDArray[np.uint8], datatype: str) -> Iterator[NDArray[np.uint8]]:
    """Yield parts that end between two varints."""
    at = 0
    while at < raw.size:
        end = min(at + PACKED_AT_ONCE, raw.size)
        ends = np.flatnonzero(raw[max(at, end - MAX_VARINT_BYTES) : end] < 0x80)
        if not ends.size:
            raise _malformed(datatype)
        end = max(at, end - MAX_VARINT_BYTES) + int(ends[-1]) + 1
        yield raw[at:end]
        at = end


def _words(raw: NDArray[np.uint8], datatype: str) -> NDArray[np.unsignedinteger[Any]]:
    if raw.max() < 0x80:
        return raw
    ends = np.flatnonzero(raw < 0x80)
    starts = np.empty_like(ends)
    starts[0] = 0
    starts[1:] = ends[:-1] + 1
    lengths = ends - starts + 1
    longest = int(lengths.max())
    if longest > MAX_VARINT_BYTES:
        raise _malformed(datatype)
    words = (raw[starts] & 0x7F).astype(np.uint64)
    for place in range(1, longest):
        longer = np.flatnonzero(lengths > place)
        bits = (raw[starts[longer] + place] & 0x7F).astype(np.uint64)
        words[longer] |= bits << np.uint64(7 * place)
    return words


def _bytes_of(words: NDArray[np.uint64]) -> bytes:
    if words.max() < 0x80:
        return words.astype(np.uint8).tobytes()
    lengths = np.ones(words.size, np.int64)
    for place in range(1, MAX_VARINT_BYTES):
        more = words >= np.uint64(1 << 7 * place)
        if not more.any():
            break
        lengths += more
    starts = np.zeros(words.size + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    out = np.empty(int(starts[-1]), np.uint8)
    for place in range(int(lengths.max(initial=0))):
        here = np.flatnonzero(lengths > place)
        byte = (words[here] >> np.uint64(7 * place)).astype(np.uint8) & 0x7F
        out[starts[here] + place] = byte | (lengths[here] > place + 1) * np.uint8(0x80)
    return out.tobytes()


def _malformed(datatype: str) -> InvalidInput:
    return InvalidInput(f"packed values of {datatype} are not valid protobuf")
