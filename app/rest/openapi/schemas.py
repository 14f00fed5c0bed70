"""Tensors as JSON schemas, and arrays as examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import orjson

from app.codec import encode_tensor
from app.errors import printable
from app.tensors import BY_NAME, Arrays, TensorSpec

Schema = dict[str, Any]

MOST_CLASSES = 20
"""Classes of an output that are named here; `/models` has all."""


def named(specs: Sequence[TensorSpec]) -> Schema:
    """All of `specs` by name, and nothing else."""
    return closed({spec.name: array(spec) for spec in specs}, [spec.name for spec in specs])


def closed(properties: Schema, required: Sequence[str] = ()) -> Schema:
    """An object with these properties and no others."""
    schema: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return schema | ({"required": list(required)} if required else {})


def array(spec: TensorSpec) -> Schema:
    """A tensor as nested arrays; open dimensions take any length."""
    about = {"description": describe(spec)}
    return about if spec.shape is None else nested(spec.datatype, spec.shape) | about


def describe(spec: TensorSpec) -> str:
    """A tensor in words: its datatype, its shape, and the classes of its columns."""
    said = f"{spec.datatype} {spec.shape_text}"
    if not spec.labels:
        return said
    shown = ", ".join(printable(one, 40) for one in spec.labels[:MOST_CLASSES])
    more = len(spec.labels) - MOST_CLASSES
    return f"{said}, a column for each class: {shown}" + (f" and {more} more" * (more > 0))


def nested(datatype: str, shape: Sequence[int | str | None]) -> Schema:
    """Nested arrays of a shape."""
    schema = element(datatype)
    for size in reversed(shape):
        schema = {"type": "array", "items": schema}
        if isinstance(size, int):
            schema |= {"minItems": size, "maxItems": size}
    return schema


def element(datatype: str) -> Schema:
    """One value of a tensor; anything for what is not a tensor."""
    known = BY_NAME.get(datatype)
    if known is None:
        return {}
    if known.kind == "bool":
        return {"type": "boolean"}
    if known.kind == "text":
        return {"type": "string"}
    if known.kind == "int":
        if datatype.startswith("U"):
            return {"type": "integer", "minimum": 0, "maximum": 2**known.bits - 1}
        half = 2 ** (known.bits - 1)
        return {"type": "integer", "minimum": -half, "maximum": half - 1}
    number: Schema = {"type": "number"}
    if known.bits in (16, 32):  # JSON's own numbers are FP64; the small ones round each their way
        limits = ml_dtypes.finfo(known.dtype)  # type: ignore[no-untyped-call]
        half_a_step = 2.0 ** (limits.maxexp - limits.nmant - 2)  # what is beyond rounds to infinity
        beyond = float(limits.max) + half_a_step
        number |= {"exclusiveMinimum": -beyond, "exclusiveMaximum": beyond}
    return number


def listed(arrays: Arrays) -> dict[str, Any]:
    """Arrays as nested lists, written with as few digits as they need."""
    written = {name: encode_tensor(name, one) for name, one in arrays.items()}
    values: dict[str, Any] = orjson.loads(orjson.dumps(written, option=orjson.OPT_SERIALIZE_NUMPY))
    return values
