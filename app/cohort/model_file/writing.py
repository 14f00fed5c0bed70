"""Fields of a protobuf message, written.

https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Sequence

from cohort.model_file.protobuf import MessageBytes


def write_field(number: int, value: int | MessageBytes | bytes) -> bytes:
    """A field: of a number as a varint, of anything else with its length."""
    return b"".join(write_parts(number, value))


def write_parts(number: int, value: int | MessageBytes | bytes) -> Sequence[bytes]:
    """A field as its key, its length and its content, which may be long."""
    if isinstance(value, int):
        return write_varint(number << 3), write_varint(value)
    content = bytes(value)
    return write_key(number), write_varint(len(content)), content


def write_key(number: int) -> bytes:
    """The key of a field that has a length."""
    return write_varint(number << 3 | 2)


def write_varint(value: int) -> bytes:
    """A number of 0 or more, seven bits to a byte."""
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)
