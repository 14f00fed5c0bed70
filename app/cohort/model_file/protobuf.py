"""Read the fields of messages in a model's file.

This uses no library: `onnx` and protobuf read the whole file into memory with its weights, and
`onnx` rejects files above 2 GB. Only the fields needed here are read; weights are skipped.
The field numbers are those of https://github.com/onnx/onnx/blob/main/onnx/onnx.proto.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, overload

DeclaredShape = tuple[int | str | None, ...] | None

TENSOR = 1
SEQUENCE = 4
_KINDS = frozenset({TENSOR, SEQUENCE, 5, 8, 9})  # map, sparse tensor, optional

_VARINT, _FIXED64, _BYTES, _START_GROUP, _END_GROUP, _FIXED32 = range(6)


class FileSlice:
    """A part of a file that slices like bytes: short slices are read, long ones stay on disk.

    Weights therefore use no memory. A file truncated while it is read raises ValueError; a memory
    map would crash the process.
    """

    MAX_READ_BYTES = 1 << 16

    def __init__(self, file: BinaryIO, start: int, length: int) -> None:
        self._file, self._start, self._length = file, start, length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> MessageBytes: ...
    def __getitem__(self, at: int | slice) -> int | MessageBytes:
        if isinstance(at, int):
            return self._read(at, 1)[0]
        if at.stop - at.start > self.MAX_READ_BYTES:
            return FileSlice(self._file, self._start + at.start, at.stop - at.start)
        return memoryview(self._read(at.start, at.stop - at.start))

    def __bytes__(self) -> bytes:
        return self._read(0, self._length)

    def _read(self, at: int, length: int) -> bytes:
        self._file.seek(self._start + at)
        content = self._file.read(length)
        if len(content) < length:
            raise ValueError("the file became shorter while it was read")
        return content


MessageBytes = memoryview | FileSlice


def fields(
    message: MessageBytes, *, fixed: bool = False
) -> Iterator[tuple[int, int | MessageBytes]]:
    """Yield each field of a message, in order: its number, and its varint or its bytes.

    fixed: True to yield also the four or eight bytes of fixed-length numbers. By default they are
        skipped, because few fields have them.

    https://protobuf.dev/programming-guides/encoding/
    """
    at, end = 0, len(message)
    while at < end:
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if number == 0:
            raise ValueError("a field has the number 0")
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield number, value
        elif kind == _BYTES:
            length, at = _varint(message, at)
            if length > end - at:
                raise ValueError("the file ends inside a field")
            yield number, message[at : at + length]
            at += length
        elif kind in (_FIXED64, _FIXED32):
            length = 8 if kind == _FIXED64 else 4
            if length > end - at:
                raise ValueError("the file ends inside a field")
            if fixed:
                yield number, message[at : at + length]
            at += length
        elif kind == _START_GROUP:
            at = _after_group(message, at, number)
        else:
            raise ValueError(f"a field has the unknown kind {kind}")


def _after_group(message: MessageBytes, at: int, number: int) -> int:
    """Skip a group, an obsolete kind of nesting that no ONNX file should contain."""
    open_groups = [number]
    while open_groups:
        key, at = _varint(message, at)
        kind = key & 7
        if kind == _START_GROUP:
            open_groups.append(key >> 3)
        elif kind == _END_GROUP:
            if open_groups.pop() != key >> 3:
                raise ValueError("a group ends that was not open")
        elif kind == _VARINT:
            _, at = _varint(message, at)
        elif kind == _BYTES:
            length, at = _varint(message, at)
            at += length
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"a field has the unknown kind {kind}")
    return at


def _varint(message: MessageBytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(message):
            raise ValueError("the file ends inside a number")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
        shift += 7
        if shift > 63:
            raise ValueError("a number is longer than ten bytes")


def varints(message: MessageBytes, most: int | None = None) -> list[int]:
    """Return the first `most` numbers of a packed field; all by default."""
    found: list[int] = []
    at = 0
    while at < len(message) and (most is None or len(found) < most):
        value, at = _varint(message, at)
        found.append(value)
    return found


def signed(value: int) -> int:
    """Convert an unsigned varint to the int64 that it encodes."""
    return value - (1 << 64) if value >> 63 else value


def decode_text(value: MessageBytes) -> str:
    """Decode a string field; replace invalid UTF-8."""
    return bytes(value).decode("utf-8", "replace")


def read_opset(message: MessageBytes) -> tuple[str, int]:
    """Read an operator set import: its domain and its version."""
    domain, version = "", 0
    for number, value in fields(message):
        if number == 1 and not isinstance(value, int):
            domain = decode_text(value)
        elif number == 2 and isinstance(value, int):
            version = signed(value)
    return domain, version


def read_pair(message: MessageBytes) -> tuple[str, str]:
    """Read a key and its text."""
    texts = {1: "", 2: ""}
    for number, value in fields(message):
        if number in texts and not isinstance(value, int):
            texts[number] = decode_text(value)
    return texts[1], texts[2]


def read_value_info(message: MessageBytes) -> tuple[str, int, int, DeclaredShape]:
    """Read an input or output: its name, the kind of its type, its element type and its shape.

    The kind is TENSOR, another field number of ONNX's TypeProto, or 0. The element type is the
    TensorProto.DataType of a tensor or of a sequence's tensors. Only a tensor has a shape.
    """
    name, found, element, shape = "", 0, 0, None
    for number, value in fields(message):
        if isinstance(value, int):
            continue
        if number == 1:
            name = decode_text(value)
        elif number == 2:
            for kind, inner in fields(value):
                if isinstance(inner, int) or kind not in _KINDS:
                    continue
                found = kind
                if kind == TENSOR:
                    element, shape = _tensor_type(inner)
                elif kind == SEQUENCE:
                    element = _element_of(inner)
    return name, found, element, shape


def _element_of(sequence: MessageBytes) -> int:
    """Return the element type of a sequence's tensors; 0 for a sequence of other values."""
    types = [value for number, value in fields(sequence) if number == 1]
    inner = [
        one
        for kind in types
        if not isinstance(kind, int)
        for one in fields(kind)
        if one[0] == TENSOR
    ]
    found = [_tensor_type(tensor)[0] for _, tensor in inner if not isinstance(tensor, int)]
    return found[-1] if found else 0


def _tensor_type(tensor: MessageBytes) -> tuple[int, DeclaredShape]:
    """Return the element type and the shape; None is an unknown rank, () is a scalar."""
    element = 0
    found: list[int | str | None] | None = None
    for number, value in fields(tensor):
        if number == 1 and isinstance(value, int):
            element = value
        elif number == 2 and not isinstance(value, int):
            found = [] if found is None else found
            found += [
                _dimension(size)
                for inner, size in fields(value)
                if inner == 1 and not isinstance(size, int)
            ]
    return element, None if found is None else tuple(found)


def _dimension(message: MessageBytes) -> int | str | None:
    size: int | str | None = None
    for number, value in fields(message):
        if number == 1 and isinstance(value, int):
            size = signed(value)
        elif number == 2 and not isinstance(value, int):
            size = decode_text(value) or None
    return size if not isinstance(size, int) or size >= 0 else None
