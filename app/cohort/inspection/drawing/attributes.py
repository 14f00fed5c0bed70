"""Describe the attributes of a node as text."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cohort.errors import shortened
from cohort.inspection.drawing.words import MAX_WORDS, describe_tensor
from cohort.model_file.protobuf import FileSlice, MessageBytes, decode_text, fields, signed, varints

SHOWN = 16
"""Maximum number of list entries that are shown."""

_LISTS = {7: "floats", 8: "ints", 9: "strings", 10: "tensors", 11: "graphs"}
_EMPTY = {1: "0", 2: "0", 3: ""}  # some writers omit zero values


class Attribute(NamedTuple):
    """An attribute: its value as text, the type of a tensor in it, and its graphs."""

    name: str
    text: str
    tensor: str
    graphs: Sequence[MessageBytes]


def read_attribute(message: MessageBytes) -> Attribute:
    """Read an AttributeProto; show the first entries of a long list, and its length if known."""
    name, tensor, kind, is_list = "", "", 0, False
    graphs: list[MessageBytes] = []
    shown: list[str] = []
    count, cut = 0, False
    for number, value in fields(message, fixed=True):
        if number == 20 and isinstance(value, int):
            kind = value
        elif number == 1 and not isinstance(value, int):
            name = decode_text(value)
        elif number == 21 and not isinstance(value, int):
            shown.append(f"as the caller's {decode_text(value)}")
        elif number in _WRITTEN:
            if number in (6, 11) and not isinstance(value, int):
                graphs.append(value)
            is_list |= number in _LISTS
            for text in _write(number, value):
                tensor = tensor or (text if number == 5 else "")
                count += 1
                if len(shown) < SHOWN:
                    shown.append(text)
            if count > SHOWN and number not in (6, 11) and len(message) > FileSlice.MAX_READ_BYTES:
                cut = True  # the rest would only be counted
                break
    if not shown:
        text = _EMPTY.get(kind, "[]" if kind in _WRITTEN else "")
    elif is_list:
        more = ", …" if cut else f", … ({count:,})" if count > len(shown) else ""
        text = f"[{', '.join(shown)}{more}]"
    else:
        text = shown[-1]
    return Attribute(name, text, tensor, graphs)


_WRITTEN = frozenset({2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 14, 15, 22, 23})


def _write(number: int, value: int | MessageBytes) -> Iterator[str]:
    if isinstance(value, int):
        yield str(signed(value))
    elif number in (2, 7):
        whole = value[0 : min(len(value), FileSlice.MAX_READ_BYTES) // 4 * 4]
        yield from (f"{one:g}" for (one,) in struct.iter_unpack("<f", bytes(whole)))
    elif number == 8:
        most = SHOWN + 1 if len(value) > FileSlice.MAX_READ_BYTES else None
        yield from (str(signed(one)) for one in varints(value, most))
    elif number in (4, 9):
        start = bytes(value[0 : min(len(value), 4 * MAX_WORDS)])
        yield shortened(start.decode("utf-8", "replace"), MAX_WORDS)
    elif number in (5, 10):
        yield describe_tensor(value)[1]
    else:
        yield {6: "graph", 11: "graph", 14: "type", 15: "type"}.get(number, "sparse tensor")
