"""Read tensors and attributes in a model's file; for large ones, only the type and size.

The field numbers are those of https://github.com/onnx/onnx/blob/main/onnx/onnx.proto.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cohort.model_file.protobuf import (
    FileSlice,
    MessageBytes,
    decode_text,
    fields,
    read_pair,
    signed,
    varints,
)

MAX_READ_ELEMENTS = 256
"""Maximum number of elements for which a tensor's elements are read."""

MAX_NUMBERS, MAX_TEXTS = 4096, 100_000
"""Maximum lengths of lists that are read.

Tree models have millions of numbers, and vocabularies have many words.
"""

CLASS_NUMBERS = "classlabels_int64s"
"""The attribute with the classes of a classifier; its limit is MAX_TEXTS, not MAX_NUMBERS."""

MAX_TENSOR_RANK = 64

_FORMATS = {
    1: "<f4", 2: "u1", 3: "i1", 4: "<u2", 5: "<i2", 6: "<i4", 7: "<i8", 9: "?", 10: "<f2",
    11: "<f8", 12: "<u4", 13: "<u8",
}  # fmt: skip
"""NumPy formats of raw_data, by TensorProto.DataType."""

Element = int | float | bool


class ConstantTensor(NamedTuple):
    """A tensor in a file.

    dtype: The element type, a TensorProto.DataType.
    shape: The size of each axis.
    elements: The elements in row-major order; None if they are too many, texts, or outside the
        file.
    """

    dtype: int
    shape: tuple[int, ...]
    elements: tuple[Element, ...] | None = None


class UnreadList:
    """The length of a list that is too long to be read."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count


class AttributeReference(NamedTuple):
    """A reference, in a function's node, to the attribute of this name at the function's call."""

    name: str


AttributeValue = (
    int | float | str | AttributeReference | ConstantTensor | Sequence[int | float] | Sequence[str]
    | UnreadList | None
)  # fmt: skip
"""The value of an attribute; None for a graph or a value that is not read."""


def read_tensor(message: MessageBytes, external: set[str]) -> tuple[str, ConstantTensor]:
    """Read a TensorProto: its name, and the tensor. Raises ValueError if it is malformed.

    If the elements are outside the file, their location, as written in the file, is added to
    `external`.
    """
    name, dtype, outside = "", 0, False
    shape: list[int] = []
    content: dict[int, list[MessageBytes | int]] = {}
    for number, value in fields(message, fixed=True):
        if number == 1:
            shape += _integers(value, MAX_TENSOR_RANK)
        elif number == 2 and isinstance(value, int):
            dtype = value
        elif number == 8 and not isinstance(value, int):
            name = decode_text(value)
        elif number == 13 and not isinstance(value, int):
            outside = True
            key, text = read_pair(value)
            if key == "location":
                external.add(text)
        elif number in (13, 14):
            outside |= number == 13 or value == 1
        elif number in (4, 5, 7, 9, 10, 11) and len(content.get(number, ())) <= MAX_READ_ELEMENTS:
            content.setdefault(number, []).append(value)
    sizes = tuple(shape)
    count = math.prod(sizes)
    elements = None
    if not outside and 0 <= count <= MAX_READ_ELEMENTS and len(sizes) <= MAX_TENSOR_RANK:
        elements = _elements(dtype, count, content)
    return name, ConstantTensor(dtype, sizes, elements)


def _elements(
    dtype: int, count: int, content: dict[int, list[MessageBytes | int]]
) -> tuple[Element, ...] | None:
    """Decode the elements from the fields in `content`; None if there are not `count` of them."""
    if dtype not in _FORMATS:
        return None
    found: list[Element] = []
    for number, values in content.items():
        for value in values:
            if number == 9 and not isinstance(value, int):
                size = np.dtype(_FORMATS[dtype]).itemsize
                found += np.frombuffer(_start(value, count * size), _FORMATS[dtype]).tolist()
            elif number in (4, 10):
                found += _floats(value, "<f4" if number == 4 else "<f8", count)
            elif dtype == 10:  # FP16 numbers stored as integers
                halves = np.array(_integers(value, count), np.int64).astype(np.uint16)
                found += halves.view(np.float16).tolist()
            else:
                found += _integers(value, count)
    if dtype == 9:
        found = [bool(one) for one in found]
    return tuple(found) if len(found) == count else None


def _start(value: MessageBytes, most: int) -> bytes:
    return bytes(value[0 : min(len(value), most + 1)])


def _integers(value: int | MessageBytes, most: int) -> list[int]:
    """Return the numbers of a field, packed or not: at most one more than `most`."""
    if isinstance(value, int):
        return [signed(value)]
    return [signed(one) for one in varints(value, most + 1)]


def _floats(value: int | MessageBytes, form: str, most: int) -> list[float]:
    if isinstance(value, int):
        return []
    size = np.dtype(form).itemsize
    whole = min(len(value), (most + 1) * size) // size * size
    found: list[float] = np.frombuffer(bytes(value[0:whole]), form).tolist()
    return found


def read_attribute_value(
    message: MessageBytes, external: set[str]
) -> tuple[str, AttributeValue, Sequence[MessageBytes]]:
    """Read an AttributeProto: its name, its value, and the graphs in it, which are not read.

    external: See `read_tensor`.
    """
    name, kind = "", 0
    single: AttributeValue = None
    numbers, texts = _Numbers(), list[str]()
    text_count = 0
    graphs: list[MessageBytes] = []
    for number, value in fields(message, fixed=True):
        if number == 20 and isinstance(value, int):
            kind = value
        elif number == 1 and not isinstance(value, int):
            name = decode_text(value)
        elif number in (6, 11) and not isinstance(value, int):
            graphs.append(value)
        elif number in (7, 8):
            numbers.add(number, value, MAX_TEXTS if name == CLASS_NUMBERS else MAX_NUMBERS)
        elif number == 10 and not isinstance(value, int):
            read_tensor(value, external)  # only for `external`: lists of tensors are not kept
        elif number == 9 and not isinstance(value, int):
            text_count += 1
            if text_count <= MAX_TEXTS:
                texts.append(decode_text(value))
        elif (found := _single(number, value, external)) is not None:
            single = found
    if single is not None:
        return name, single, graphs
    if text_count:
        return name, texts if text_count <= MAX_TEXTS else UnreadList(text_count), graphs
    if numbers.count:
        complete = numbers.count == len(numbers.found)
        return name, numbers.found if complete else UnreadList(numbers.count), graphs
    nothing: dict[int, AttributeValue] = {1: 0.0, 2: 0, 3: "", 6: (), 7: (), 8: ()}
    return name, nothing.get(kind), graphs  # some writers omit zero values


class _Numbers:
    """The first numbers of a list, and its length."""

    def __init__(self) -> None:
        self.found: list[int | float] = []
        self.count = 0

    def add(self, number: int, value: int | MessageBytes, most: int) -> None:
        """Add the numbers of a field, packed or not, up to a total of `most`."""
        room = max(0, most - len(self.found))
        if number == 7:
            self.count += 0 if isinstance(value, int) else len(value) // 4
            self.found += _floats(value, "<f4", room)[:room]
        else:
            self.count += 1 if isinstance(value, int) else _count_varints(value)
            self.found += _integers(value, room)[:room]


def _single(number: int, value: int | MessageBytes, external: set[str]) -> AttributeValue:
    if isinstance(value, int):
        return signed(value) if number == 3 else None
    match number:
        case 2 if len(value) == 4:
            return float(struct.unpack("<f", bytes(value))[0])
        case 4:
            return decode_text(value[0 : min(len(value), FileSlice.MAX_READ_BYTES)])
        case 5:
            return read_tensor(value, external)[1]
        case 21:
            return AttributeReference(decode_text(value))
        case 22:
            return read_sparse(value, external)[1]
    return None


def read_sparse(message: MessageBytes, external: set[str]) -> tuple[str, ConstantTensor]:
    """Read a SparseTensorProto. Its name is the name of its values tensor.

    external: See `read_tensor`.
    """
    name, dtype = "", 0
    shape: list[int] = []
    for number, value in fields(message):
        if number == 3:
            shape += _integers(value, MAX_TENSOR_RANK)
        elif number == 1 and not isinstance(value, int):
            name, values = read_tensor(value, external)
            dtype = values.dtype
        elif number == 2 and not isinstance(value, int):
            read_tensor(value, external)  # the indices of the values
    return name, ConstantTensor(dtype, tuple(shape))


def _count_varints(value: MessageBytes) -> int:
    """Count the numbers of a packed field; read it in pieces."""
    count, step = 0, FileSlice.MAX_READ_BYTES
    for start in range(0, len(value), step):
        piece = bytes(value[start : min(start + step, len(value))])
        count += int(np.count_nonzero(np.frombuffer(piece, np.uint8) < 0x80))
    return count
