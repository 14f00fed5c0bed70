"""Write the fields of a protobuf message.

https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Sequence

from cohort.model_file.protobuf import MessageBytes


def write_field(number: int, value: int | MessageBytes | bytes) -> bytes:
    """Encode a field: a number as a varint, other values with their length."""
    return b"".join(write_parts(number, value))


def write_parts(number: int, value: int | MessageBytes | bytes) -> Sequence[bytes]:
    """Encode a field in parts, so that long content is not copied again.

    A number gives its key and its value. Other values give their key, length and content.
    """
    if isinstance(value, int):
        return write_varint(number << 3), write_varint(value)
    content = bytes(value)
    return write_key(number), write_varint(len(content)), content


def write_key(number: int) -> bytes:
    """Encode the key of a field that has a length."""
    return write_varint(number << 3 | 2)


def write_varint(value: int) -> bytes:
    """Encode a number of 0 or more as a varint, with seven bits per byte."""
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)
