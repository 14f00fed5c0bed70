"""The paths of one loaded version, with its own tensors in their schemas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Any

from app.control_plane import ServedModel
from app.errors import CohortError
from app.rest.errors import HTTP_STATUS
from app.rest.openapi.schemas import Schema, array, closed, describe, listed, named
from app.tensors import TensorSpec

LARGEST_EXAMPLE = 2048
"""Values in an example; a larger one is unreadable, and blocks the page."""

INFERENCE_ERRORS = (400, 404, 413, 415, 429, 500, 503, 504)
"""The statuses of an inference beside 200."""


def paths_of(served: ServedModel) -> dict[str, Schema]:
    """The paths that name this version, and, if it is the default, those that name none."""
    pinned = f"/versions/{served.version}"
    places = ["", pinned] if served.default else [pinned]
    paths: dict[str, Schema] = {}
    for place in places:
        which = f", version {served.version}" if place else ""
        paths[f"/models/{served.model}{place}/predict"] = _post(
            served,
            f"Predict with {served.model}{which}",
            request=request_schema(served),
            examples=examples(served),
            response=response_schema(served),
        )
        paths[f"/v1/models/{served.model}{place}:predict"] = _post(
            served,
            f"Predict with {served.model}{which}, as with TensorFlow Serving",
            request=v1_request_schema(served),
            examples=v1_examples(served),
            response=v1_response_schema(served),
        )
        v2 = v2_example(served)
        paths[f"/v2/models/{served.model}{place}/infer"] = _post(
            served,
            f"Infer with {served.model}{which}, by the Open Inference Protocol",
            request=v2_request_schema(served),
            examples={} if v2 is None else {"in JSON": v2},
            response=v2_response_schema(served),
        )
    for path, item in paths.items():
        item["post"]["operationId"] = "".join(one if one.isalnum() else "_" for one in path[1:])
    return paths


def tag(model: str) -> str:
    """The heading of a model's own paths."""
    return f"model {model}"


def _post(
    served: ServedModel,
    summary: str,
    *,
    request: Schema,
    examples: Mapping[str, Any],
    response: Schema,
) -> Schema:
    content: Schema = {"schema": request}
    if examples:
        content["examples"] = {name: {"value": value} for name, value in examples.items()}
    succeeded = {
        "description": "The response",
        "content": {"application/json": {"schema": response}},
    }
    return {
        "post": {
            "tags": [tag(served.model)],
            "summary": summary,
            "description": describe_tensors(served),
            "requestBody": {"required": True, "content": {"application/json": content}},
            "responses": {"200": succeeded, **error_responses(INFERENCE_ERRORS)},
        }
    }


def error_responses(statuses: Sequence[int]) -> dict[str, Schema]:
    """What errors with these statuses look like."""
    return {str(status): _error_response(status) for status in statuses}


def _error_response(status: int) -> Schema:
    names = [
        kind.__name__
        for kind, one in HTTP_STATUS.items()
        if one == status and kind.__name__ != "Cancelled"  # the caller has left
    ]
    response: Schema = {
        "description": " or ".join(names) or HTTPStatus(status).phrase,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        seconds = {"description": "seconds", "schema": {"type": "integer", "minimum": 1}}
        response["headers"] = {"Retry-After": seconds}
    return response


def describe_tensors(served: ServedModel) -> str:
    """The tensors of a version, as a Markdown table."""
    rows = [
        f"| {kind} | `{spec.name}` | {spec.datatype} | {spec.shape_text} |"
        for kind, specs in (("input", served.inputs), ("output", served.outputs))
        for spec in specs
    ]
    lines = ["| | name | datatype | shape |", "|---|---|---|---|", *rows]
    if not _transportable(served):
        lines += ["", "It has no output that can be sent over the wire."]
    elif served.example is not None and not examples(served):
        lines += [
            "",
            "Its inputs are too large for an example here, or not JSON.",
        ]
    return "\n".join(lines)


def _transportable(served: ServedModel) -> list[TensorSpec]:
    return [spec for spec in served.outputs if spec.transportable]


# -- the simple API


def request_schema(served: ServedModel) -> Schema:
    """What `/predict` takes for this version. What may be left out may be null."""
    names = {"enum": [spec.name for spec in _transportable(served)]}
    common: Schema = {
        "model": {"enum": [served.model, None]},
        "version": {"enum": [served.version, int(served.version), None]},
        "outputs": {
            "description": "the requested outputs; all if left out",
            "type": ["array", "null"],
            "items": names,
            "minItems": 1,
            "maxItems": len(served.outputs),
        },
        "id": {"type": ["string", "null"], "description": "returned with the response"},
        "timeout_ms": {
            "type": ["number", "null"],
            "exclusiveMinimum": 0,
            "description": "give up after this long",
        },
        "parameters": {
            "type": ["object", "null"],
            "additionalProperties": {"type": ["string", "number", "boolean"]},
        },
    }
    by_name = closed({"inputs": named(served.inputs), **common}, ["inputs"])
    if len(served.inputs) != 1:
        return by_name
    simple = closed({"input": array(served.inputs[0]), **common}, ["input"])
    return {"oneOf": [{"title": "By name", **by_name}, {"title": "Simple", **simple}]}


def response_schema(served: ServedModel) -> Schema:
    """`/predict`'s response for this version."""
    outputs = _transportable(served)
    common: Schema = {
        "model": {"const": served.model},
        "version": {"type": "string"},
        "variant": {"type": "string"},
        "id": {"type": "string"},
        "inference_time_ms": {"type": "number", "minimum": 0},
    }
    always = ["model", "version", "inference_time_ms"]
    some = closed({spec.name: array(spec) for spec in outputs}) | {"minProperties": 1}
    by_name = closed({**common, "outputs": some}, [*always, "outputs"])
    if len(served.inputs) != 1:
        return by_name
    prediction = {"anyOf": [*(array(spec) for spec in outputs), some]}
    return {
        "oneOf": [by_name, closed({**common, "prediction": prediction}, [*always, "prediction"])]
    }


def examples(served: ServedModel) -> dict[str, Any]:
    """Bodies that work as they are; none where they would be too large to read."""
    values = _values(served)
    if values is None:
        return {}
    shown: dict[str, Any] = {"by name": {"inputs": values}}
    if len(values) == 1:
        shown["as tutorials write it"] = {"input": next(iter(values.values()))}
    return shown


def _values(served: ServedModel) -> dict[str, Any] | None:
    arrays = served.example
    if arrays is None or not _transportable(served):
        return None
    if sum(one.size for one in arrays.values()) > LARGEST_EXAMPLE:
        return None
    try:
        return listed(arrays)
    except CohortError:  # published with NaN in it, which JSON cannot carry
        return None


# -- TensorFlow Serving's


def v1_request_schema(served: ServedModel) -> Schema:
    """What `:predict` takes for this version: rows or columns, by name or the only input itself."""
    signature = {"signature_name": {"enum": ["serving_default", "", None]}}
    columns = [named(served.inputs)]
    rows = []
    if all(spec.shape for spec in served.inputs):
        items = [replace(spec, shape=spec.shape[1:]) for spec in served.inputs if spec.shape]
        rows.append({"type": "array", "minItems": 1, "items": named(items)})
    if len(served.inputs) == 1:
        columns.append(array(served.inputs[0]))
        rows += [array(spec) | {"minItems": 1} for spec in served.inputs if spec.shape]
    forms = [{"inputs": one, "instances": False} for one in columns]
    forms += [{"instances": one, "inputs": False} for one in rows]
    return {
        "anyOf": [
            {
                "type": "object",
                "properties": signature | form,
                "required": [next(iter(form))],
            }
            for form in forms
        ]
    }


def v1_response_schema(served: ServedModel) -> Schema:
    """`:predict`'s response for this version."""
    outputs = _transportable(served)
    if len(outputs) == 1:
        columns, rows = array(outputs[0]), array(outputs[0])
    else:
        columns = named(outputs)
        items = [replace(spec, shape=spec.shape[1:] if spec.shape else None) for spec in outputs]
        rows = {"type": "array", "items": named(items)}
    by_row, by_column = closed({"predictions": rows}), closed({"outputs": columns})
    return {"oneOf": [by_row | {"minProperties": 1}, by_column | {"minProperties": 1}]}


def v1_examples(served: ServedModel) -> dict[str, Any]:
    """Bodies that work as they are, in both forms."""
    values = _values(served)
    if not values:
        return {}
    shown: dict[str, Any] = {}
    if all(spec.shape for spec in served.inputs) and len(set(map(len, values.values()))) == 1:
        rows = zip(*values.values(), strict=True)
        shown["by row"] = {"instances": [dict(zip(values, row, strict=True)) for row in rows]}
    shown["by column"] = {"inputs": values}
    return shown


# -- the Open Inference Protocol


def v2_request_schema(served: ServedModel) -> Schema:
    """What `/v2/…/infer` takes for this version where everything is JSON."""
    parameters: Schema = {"type": ["object", "null"]}
    inputs = [
        {
            "type": "object",
            "description": describe(spec),
            "properties": {
                **_head(spec),
                "data": {"type": "array", "description": "flat, or nested as the shape says"},
                "parameters": parameters,
            },
            "required": ["name", "datatype", "shape", "data"],
        }
        for spec in served.inputs
    ]
    output = {
        "type": "object",
        "properties": {
            "name": {"enum": [spec.name for spec in _transportable(served)]},
            "parameters": parameters,
        },
        "required": ["name"],
    }
    return {
        "type": "object",
        "properties": {
            "id": {"type": ["string", "integer", "null"], "description": "given back as a string"},
            "inputs": _each(inputs),
            "outputs": {
                "description": "the requested outputs; all if left out",
                "type": ["array", "null"],
                "items": output,
            },
            "parameters": parameters,
        },
        "required": ["inputs"],
    }


def v2_response_schema(served: ServedModel) -> Schema:
    """`/v2/…/infer`'s response for this version where everything is JSON."""
    outputs = [
        {
            "type": "object",
            "description": describe(spec),
            "properties": {
                "name": {"const": spec.name},
                "datatype": {"enum": sorted({spec.datatype, "BYTES"})},  # classes are BYTES
                "shape": SHAPE,
                "data": {"type": "array"},
            },
            "required": ["name", "datatype", "shape"],
        }
        for spec in _transportable(served)
    ]
    return closed(
        {
            "model_name": {"const": served.model},
            "model_version": {"type": "string"},
            "id": {"type": "string"},
            "parameters": {"type": "object"},
            "outputs": {"type": "array", "items": {"anyOf": outputs} if outputs else {}},
        },
        ["model_name", "model_version", "outputs"],
    )


SHAPE: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0}}


def _head(spec: TensorSpec) -> Schema:
    """An input's name, datatype and shape."""
    shape = SHAPE
    if spec.shape is not None:
        rank = len(spec.shape)
        sizes = [
            {"const": size} if isinstance(size, int) else {"type": "integer", "minimum": 0}
            for size in spec.shape
        ]
        shape = {"type": "array", "minItems": rank, "maxItems": rank}
        shape |= {"prefixItems": sizes} if sizes else {}
    return {"name": {"const": spec.name}, "datatype": {"const": spec.datatype}, "shape": shape}


def _each(members: Sequence[Schema]) -> Schema:
    """A list with all of these in any order."""
    count = len(members)
    each: Schema = {"type": "array", "minItems": count, "maxItems": count}
    return each | ({"items": {"anyOf": list(members)}} if members else {})


def v2_example(served: ServedModel) -> dict[str, Any] | None:
    """A body for the Open Inference Protocol."""
    values = _values(served)
    if values is None or served.example is None:
        return None
    return {
        "inputs": [
            {
                "name": spec.name,
                "datatype": spec.datatype,
                "shape": list(served.example[spec.name].shape),
                "data": _in_list(values[spec.name]),
            }
            for spec in served.inputs
        ]
    }


def _in_list(value: Any) -> list[Any]:
    """The protocol's data is a list, a scalar's, too."""
    return value if isinstance(value, list) else [value]
