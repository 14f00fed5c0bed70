"""Tensors as JSON schemas and arrays as examples, for models of any size.

Swagger UI fills in as many values as a schema requires, and a page with millions does not open.
Above MAX_EXAMPLE values a schema therefore has the depth of arrays but not their length.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import orjson

from cohort.codec import SIGNATURE, encode_tensor
from cohort.errors import printable, shortened
from cohort.tensors import BY_NAME, Arrays, TensorSpec

Schema = dict[str, Any]

NOTHING: Schema = {"not": {}}
"""A schema that no value fits. Client generators cannot read `false`."""

SIGNATURE_NAME: Schema = {"type": ["string", "null"], "enum": [SIGNATURE, "", None]}
"""Signature names that TensorFlow Serving's clients may send."""

MAX_CLASSES = 20
"""Classes of an output that are listed here. `/models` has all."""

MAX_EXAMPLE = 1024
"""Values in an example, or that a schema makes a page fill in. More block the page."""

MAX_TENSORS = 64
"""Inputs or outputs of a model that are described here. `/models` has all."""

MAX_NAME_BYTES = 4096
"""Maximum total size of the names of these inputs or outputs."""

MAX_DIMENSIONS = 16
"""Dimensions up to which an array is described dimension by dimension."""


def first_of(specs: Sequence[TensorSpec]) -> Sequence[TensorSpec]:
    """Return the `specs` that are described here, usually all."""
    size = 0
    for count, spec in enumerate(specs[: MAX_TENSORS + 1]):
        size += len(spec.name.encode())
        if count == MAX_TENSORS or size > MAX_NAME_BYTES:
            return specs[:count]
    return specs


def least_values(spec: TensorSpec) -> int:
    """Return the number of values in the smallest array for `spec`."""
    sizes = [size for size in spec.shape or () if isinstance(size, int)]
    return prod(max(size, 1) for size in sizes)


def can_fill_in(specs: Iterable[TensorSpec]) -> bool:
    """Return True if a page can fill in arrays for all of `specs`."""
    return sum(map(least_values, specs)) <= MAX_EXAMPLE


def arrays(specs: Sequence[TensorSpec]) -> Schema:
    """Return schemas of nested arrays for `specs`, by name."""
    exact = can_fill_in(specs)
    return {spec.name: array(spec, exact=exact) for spec in specs}


def named(specs: Sequence[TensorSpec], optional: Sequence[TensorSpec] = ()) -> Schema:
    """Return the schema of an object with all `specs` and any `optional` ones."""
    every = [*specs, *optional]
    shown = first_of(every)
    schema = closed(arrays(shown), [spec.name for spec in shown[: len(specs)]])
    if len(shown) < len(every):
        schema["additionalProperties"] = True
        schema["description"] = f"these, and {len(every) - len(shown):,} more"
    return schema


def closed(properties: Schema, required: Sequence[str] = ()) -> Schema:
    """Return the schema of an object with these properties and no others."""
    schema: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return schema | ({"required": list(required)} if required else {})


def columns_of(specs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """Return the table columns that `specs` form, each as one value, or []."""
    if len(specs) == 1 and specs[0].columns:
        return [replace(specs[0], name=name, shape=(), columns=()) for name in specs[0].columns]
    for spec in specs:
        if not spec.rows_vary or (spec.shape or ())[1:] not in {(), (1,)}:
            return []
    return [replace(spec, shape=()) for spec in specs]


def transportable(specs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """Return the `specs` that can be sent over the wire."""
    return [spec for spec in specs if spec.transportable]


def names_of(specs: Sequence[TensorSpec]) -> Schema:
    """Return the schema for the name of one of `specs`."""
    if len(first_of(specs)) < len(specs):
        return {"type": "string"}
    return {"enum": [spec.name for spec in specs]} if specs else NOTHING


def any_of(schemas: Sequence[Schema]) -> Schema:
    """Return a schema that fits any of `schemas`, or everything if there are none."""
    if len(schemas) == 1:
        return schemas[0]
    return {"anyOf": list(schemas)} if schemas else {}


def array(spec: TensorSpec, *, exact: bool | None = None) -> Schema:
    """Return the schema of a tensor as nested arrays. Open dimensions accept any length.

    exact: True if fixed dimensions accept only their length. Default: True if a page can fill it
        in.
    """
    about = {"description": describe(spec)}
    if spec.shape is None:
        return about
    exact = can_fill_in([spec]) if exact is None else exact
    return nested(spec.datatype, spec.shape, exact=exact) | about


def describe(spec: TensorSpec) -> str:
    """Return a tensor's datatype, shape and classes as text."""
    text = f"{spec.datatype} {shortened(spec.shape_text, 160)}"
    if not spec.labels:
        return text
    shown = ", ".join(printable(one, 40) for one in spec.labels[:MAX_CLASSES])
    more = len(spec.labels) - MAX_CLASSES
    return f"{text}, a column for each class: {shown}" + (f" and {more} more" * (more > 0))


def nested(datatype: str, shape: Sequence[int | str | None], *, exact: bool = True) -> Schema:
    """Return the schema of nested arrays of a shape, with the fixed lengths if `exact`."""
    if len(shape) > MAX_DIMENSIONS:
        return {"type": "array", "items": {}}
    schema = element(datatype)
    for size in reversed(shape):
        schema = {"type": "array", "items": schema}
        if exact and isinstance(size, int):
            schema |= {"minItems": size, "maxItems": size}
    return schema


def element(datatype: str) -> Schema:
    """Return the schema of one value of a tensor, or of anything for other datatypes."""
    known = BY_NAME.get(datatype)
    if known is None:
        return {}
    if known.kind == "bool":
        return {"type": "boolean"}
    if known.kind == "text":
        return {"type": "string"}
    if known.kind == "int":
        return _whole_number(datatype, known.bits)
    if datatype == "FP16":  # larger values round to infinity
        return {"type": "number", "exclusiveMinimum": -65520, "exclusiveMaximum": 65520}
    if known.bits in (16, 32):
        return {"type": "number", "format": "float"}
    return {"type": "number", "format": "double"} if datatype == "FP64" else {"type": "number"}


def _whole_number(datatype: str, bits: int) -> Schema:
    """Return the schema of an integer. It has no bounds if some clients cannot hold them."""
    if datatype == "INT64":
        return {"type": "integer", "format": "int64"}
    unsigned = datatype.startswith("U")
    least, most = (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    schema: Schema = {"type": "integer", "minimum": least, "maximum": most}
    if bits <= 32:
        schema["format"] = "int64" if datatype == "UINT32" else "int32"
    return schema


def listed(values: Arrays) -> dict[str, Any]:
    """Return arrays as nested lists, written with as few digits as necessary."""
    written = {name: encode_tensor(name, one) for name, one in values.items()}
    lists: dict[str, Any] = orjson.loads(orjson.dumps(written, option=orjson.OPT_SERIALIZE_NUMPY))
    return lists
