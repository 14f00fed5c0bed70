"""Arrays in the format of `numpy.save`: `application/x-npy`.

https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html. Nothing is ever unpickled.
"""

from __future__ import annotations

import re
import sys
from ast import literal_eval
from collections.abc import Callable, Iterator
from functools import lru_cache
from io import BytesIO
from math import prod
from typing import Any

import numpy as np

from cohort.codec.binary import TEXTS_AT_ONCE, from_texts
from cohort.codec.json_tensors import MAX_RANK, checked_shape
from cohort.codec.predict_response import ELEMENT_BYTES
from cohort.errors import InvalidInput, quoted
from cohort.tensors import BY_DTYPE, BY_NAME, Array, TensorSpec

NPY = "application/x-npy"

MAX_HEADER_BYTES = 1024
"""Maximum bytes of a header; arrays of one datatype have about 128."""

KNOWN_HEADERS = 128
"""Headers whose contents are kept: `literal_eval` is slow and leaves reference cycles."""

COPIED_AT_ONCE = 1 << 20
"""Bytes written at once: a tenth of a millisecond."""

_MAGIC = b"\x93NUMPY"
# The position of the header's length, by format version.
_LENGTHS = {b"\1\0": slice(8, 10), b"\2\0": slice(8, 12), b"\3\0": slice(8, 12)}
_KEYS = {"descr", "fortran_order", "shape"}
_DESCR = re.compile(r"[<>=|]?[?biufSUV]\d{0,9}")


def read_npy(body: bytes) -> Array:
    """Make an array over `body`, with the datatype, byte order and memory order in its header.

    Raises InvalidInput unless it is one whole array of booleans, numbers, strings or bytes.
    """
    if body[:6] != _MAGIC:
        raise InvalidInput("the body is not a .npy file: it does not begin as numpy.save does")
    where = _LENGTHS.get(body[6:8])
    if where is None:
        raise InvalidInput("the .npy file has an unknown format version; use 1.0, 2.0 or 3.0")
    length = int.from_bytes(body[where], "little")
    if length > MAX_HEADER_BYTES:
        raise InvalidInput(
            f"the .npy file's header has {length} bytes, more than {MAX_HEADER_BYTES}"
        )
    start = where.stop + length
    dtype, fortran, shape = _read_header(body[where.stop : start])
    expected = prod(shape) * dtype.itemsize
    if len(body) - start != expected:
        raise InvalidInput(
            f"the .npy file declares {dtype.str} of shape {list(shape)}, which is {expected} "
            f"bytes, but {max(len(body) - start, 0)} follow its header"
        )
    if not expected:
        return np.empty(shape, dtype)
    return np.frombuffer(body, dtype, offset=start).reshape(shape, order="F" if fortran else "C")


@lru_cache(maxsize=KNOWN_HEADERS)
def _read_header(header: bytes) -> tuple[np.dtype[Any], bool, tuple[int, ...]]:
    try:
        fields = literal_eval(header.decode())
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        fields = None
    if not isinstance(fields, dict) or fields.keys() != _KEYS:
        raise InvalidInput("the .npy file's header is not descr, fortran_order and shape")
    descr, fortran, shape = fields["descr"], fields["fortran_order"], fields["shape"]
    if not isinstance(fortran, bool) or not isinstance(shape, tuple):
        raise InvalidInput("the .npy file's header has no boolean fortran_order, or no tuple shape")
    if isinstance(descr, list):
        raise InvalidInput(
            "the .npy file has fields (a structured array); save one array of numbers, "
            "such as numpy.stack of its columns"
        )
    if isinstance(descr, str) and descr.lstrip("|") == "O":
        raise InvalidInput(
            "the .npy file has pickled objects, which are never loaded; save text as numpy.str_, "
            "numbers with a numeric dtype"
        )
    dtype = _dtype(descr)
    if len(shape) > MAX_RANK or any(size.__class__ is not int or size < 0 for size in shape):
        raise InvalidInput(f"the .npy file has an invalid shape: {quoted(str(shape))}")
    # numpy's strides must be able to count the bytes, even of an empty array.
    if prod(size or 1 for size in shape) * dtype.itemsize >= 1 << 63:
        raise InvalidInput("the .npy file has a shape of too many elements")
    return dtype, fortran, shape


def _dtype(descr: object) -> np.dtype[Any]:
    try:
        if isinstance(descr, str) and _DESCR.fullmatch(descr):
            dtype = np.dtype(descr)
            if dtype.itemsize:
                return dtype
    except (TypeError, ValueError):
        pass
    raise InvalidInput(f"the .npy file is of {quoted(str(descr))}, which no input can be")


def fit_work(array: Array) -> int:
    """Estimate the cost of `fit_array`, in bytes of JSON."""
    if array.dtype.kind in "SU":
        return array.size * ELEMENT_BYTES + array.nbytes
    return 0 if array.dtype.isnative and array.flags.c_contiguous else array.nbytes


def fit_array(spec: TensorSpec, array: Array) -> Array:
    """Make the array for an input, in native byte order and C order; numbers are not converted.

    `tensors.check_inputs` checks the shape. Raises InvalidInput for another datatype.
    """
    wanted = BY_NAME[spec.datatype]
    given = array.dtype
    if wanted.name == "BYTES" and given.kind in "SUV":
        return _fit_texts(spec.name, array)
    # numpy saves datatypes that it lacks, such as bfloat16, as void of the same size.
    unknown = given.kind == "V" and not wanted.numpy_native and not wanted.packed
    if unknown and given.itemsize == wanted.dtype.itemsize:
        return np.ascontiguousarray(array).view(wanted.dtype)
    native = array.astype(given.newbyteorder("="), order="C", copy=False)
    if native.dtype != wanted.dtype:
        got = BY_DTYPE.get(native.dtype)
        save = f"; save it with .astype({wanted.dtype.name!r})" if wanted.numpy_native else ""
        raise InvalidInput(
            f"input {quoted(spec.name)} must be {wanted.name}, got "
            f"{given.str if got is None else got.name}{save}"
        )
    if wanted.name == "BOOL" and native.size and native.view(np.uint8).max() > 1:
        raise InvalidInput(
            f"input {quoted(spec.name)} of BOOL must have only bytes 0 and 1, got others"
        )
    return native


def _fit_texts(name: str, array: Array) -> Array:
    checked_shape(name, "BYTES", array.shape)  # raises for too many elements
    if array.dtype.kind == "V":
        return np.ascontiguousarray(array)
    flat = array.ravel()
    parts: list[bytes] = []
    try:
        for first in range(0, flat.size, TEXTS_AT_ONCE):
            some = flat[first : first + TEXTS_AT_ONCE]
            if some.dtype.kind == "S":
                parts += some.tolist()
                continue
            codes = some.astype(some.dtype.newbyteorder("=")).view(np.uint32)
            if codes.max() > sys.maxunicode:
                raise ValueError("no character")
            parts += map(str.encode, some.tolist())
    except ValueError:  # including half a surrogate pair
        raise InvalidInput(f"input {quoted(name)} has text that is not Unicode") from None
    return from_texts(parts, name).reshape(array.shape)


def write_npy(array: Array, check: Callable[[], None] = lambda: None) -> bytes:
    """Write an array of booleans or numbers.

    check: Called for each part of a long array; an error that it raises ends the writing.
    """
    out = BytesIO()
    as_c = {"descr": np.lib.format.dtype_to_descr(array.dtype), "fortran_order": False}
    np.lib.format.write_array_header_1_0(out, {**as_c, "shape": array.shape})
    for part in _parts(array):
        check()
        out.write(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)
    return out.getvalue()


def _parts(array: Array) -> Iterator[Array]:
    """Yield the array in order, in parts of at most COPIED_AT_ONCE bytes."""
    if array.nbytes <= COPIED_AT_ONCE or not array.ndim:
        yield array
        return
    row = array.nbytes // len(array)
    if row > COPIED_AT_ONCE:
        for one in array:
            yield from _parts(one)
    else:
        step = COPIED_AT_ONCE // row
        for at in range(0, len(array), step):
            yield array[at : at + step]
