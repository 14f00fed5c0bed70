"""Describe ONNX tensors and types as text, such as `FP32 [N, 3, 224, 224]`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from cohort.errors import shortened
from cohort.model_file.protobuf import (
    TENSOR,
    MessageBytes,
    decode_text,
    fields,
    read_value_info,
    signed,
    varints,
)
from cohort.tensors import DATATYPES

MAX_WORDS = 256
"""Maximum length of a name or text, in characters."""

MAX_DIMENSIONS = 64
"""Maximum number of dimensions that are written."""

_DATATYPES = {row.onnx: row.name for row in DATATYPES}
_KINDS = {4: "sequence", 5: "map", 8: "sparse tensor", 9: "optional"}


def describe_shape(shape: Sequence[int | str | None]) -> str:
    """Return a shape as text, such as `[N, 3, ?]`."""
    sizes = ["?" if one is None else shortened(str(one), MAX_WORDS) for one in shape]
    more = ["…"] if len(sizes) > MAX_DIMENSIONS else []
    return f"[{', '.join(sizes[:MAX_DIMENSIONS] + more)}]"


def describe_value(message: MessageBytes) -> tuple[str, str]:
    """Return the name and the type of a ValueInfoProto; "" if the type is not declared."""
    name, kind, element, shape = read_value_info(message)
    if kind != TENSOR:
        return name, _KINDS.get(kind, "")
    return name, f"{_datatype(element)} {'' if shape is None else describe_shape(shape)}".strip()


def describe_tensor(message: MessageBytes) -> tuple[str, str]:
    """Return the name, and the datatype with the shape, of a TensorProto; skip its values."""
    name, element = "", 0
    dimensions: list[int | str | None] = []
    for number, value in fields(message):
        if number == 8 and not isinstance(value, int):
            name = decode_text(value)
        elif number == 2 and isinstance(value, int):
            element = value
        elif number == 1 and len(dimensions) <= MAX_DIMENSIONS:
            dimensions += _sizes(value)
    return name, f"{_datatype(element)} {describe_shape(dimensions)}"


def describe_sparse(message: MessageBytes) -> tuple[str, str]:
    """Return the name, and the datatype with the shape, of a SparseTensorProto."""
    name, datatype = "", ""
    dimensions: list[int | str | None] = []
    for number, value in fields(message):
        if number == 1 and not isinstance(value, int):  # the values tensor has the name
            name, described = describe_tensor(value)
            datatype = described.partition(" ")[0]
        elif number == 3 and len(dimensions) <= MAX_DIMENSIONS:
            dimensions += _sizes(value)
    return name, f"sparse {datatype} {describe_shape(dimensions)}"


def read_texts(message: MessageBytes, numbers: Collection[int]) -> dict[int, str]:
    """Return the texts of these fields; "" for a field that is missing."""
    found = dict.fromkeys(numbers, "")
    for number, value in fields(message):
        if number in found and not isinstance(value, int):
            found[number] = decode_text(value)
    return found


def _sizes(value: int | MessageBytes) -> Iterator[int]:
    return map(signed, [value] if isinstance(value, int) else varints(value, MAX_DIMENSIONS + 1))


def _datatype(number: int) -> str:
    return _DATATYPES.get(number, f"type {number}")
