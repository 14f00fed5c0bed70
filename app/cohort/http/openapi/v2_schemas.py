"""The Open Inference Protocol's bodies for a loaded version."""

from __future__ import annotations

from collections.abc import Sequence

from cohort.codec.labels import labellers_of
from cohort.http.openapi.schemas import (
    MAX_DIMENSIONS,
    Schema,
    any_of,
    closed,
    describe,
    first_of,
    names_of,
    transportable,
)
from cohort.operating import ServedModel
from cohort.tensors import TensorSpec


def v2_request_schema(served: ServedModel) -> Schema:
    """Return the schema of a `/v2/…/infer` request in JSON for this version."""
    parameters: Schema = {"type": ["object", "null"]}
    labels = [one.tensor for one in labellers_of(served.outputs, served.labels) if one is not None]
    every = [*served.inputs, *served.optional_inputs]
    inputs = [
        {
            "type": "object",
            "description": describe(spec),
            "properties": {
                **_head(spec),
                "data": DATA | {"description": "flat, or nested like the shape"},
                "parameters": parameters,
            },
            "required": ["name", "datatype", "shape", "data"],
        }
        for spec in first_of(every)
    ]
    output = {
        "type": "object",
        "properties": {
            "name": names_of([*transportable(served.outputs), *labels]),
            "parameters": parameters,
        },
        "required": ["name"],
    }
    return {
        "type": "object",
        "properties": {
            "id": {"$ref": "#/components/schemas/RequestId"},
            "inputs": _each(inputs, len(served.inputs), len(every)),
            "outputs": {
                "description": "the requested outputs; all if omitted",
                "type": ["array", "null"],
                "items": output,
            },
            "parameters": parameters,
        },
        "required": ["inputs"],
    }


def v2_response_schema(served: ServedModel) -> Schema:
    """Return the schema of a `/v2/…/infer` response in JSON for this version."""
    labels = [one.tensor for one in labellers_of(served.outputs, served.labels) if one is not None]
    outputs = [
        {
            "type": "object",
            "description": describe(spec),
            "properties": {
                "name": {"const": spec.name},
                "datatype": {"enum": sorted({spec.datatype, "BYTES"})},  # classes are BYTES
                "shape": SHAPE,
                "data": DATA,
            },
            "required": ["name", "datatype", "shape"],
        }
        for spec in first_of([*transportable(served.outputs), *labels])
    ]
    return closed(
        {
            "model_name": {"const": served.model},
            "model_version": {"type": "string"},
            "id": {"type": "string"},
            "parameters": {"type": "object"},
            "outputs": {"type": "array", "items": any_of(outputs)},
        },
        ["model_name", "model_version", "outputs"],
    )


DATA: Schema = {"type": "array", "items": {}}
SHAPE: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0}}


def _head(spec: TensorSpec) -> Schema:
    """Return the schemas of an input's name, datatype and shape."""
    shape = SHAPE
    if spec.shape is not None and len(spec.shape) <= MAX_DIMENSIONS:
        rank = len(spec.shape)
        sizes = [
            # No `const`: openapi-python-client would compare all of them with one.
            {"type": "integer", "minimum": size, "maximum": size}
            if isinstance(size, int)
            else {"type": "integer", "minimum": 0}
            for size in spec.shape
        ]
        shape = DATA | {"minItems": rank, "maxItems": rank}
        shape |= {"prefixItems": sizes} if sizes else {}
    return {"name": {"const": spec.name}, "datatype": {"const": spec.datatype}, "shape": shape}


def _each(members: Sequence[Schema], least: int, most: int) -> Schema:
    """Return the schema of `least` to `most` members in any order, open if some are missing."""
    if len(members) < most:
        return DATA
    return DATA | {"minItems": least, "maxItems": most, "items": any_of(members)}
