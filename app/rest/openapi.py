"""`/openapi.json` as it is now: the routes, and each loaded model's own tensors and examples.

Beside the routes with `{model}` in them, every READY model has paths of its own, with schemas made
from its tensors and an example that was run when it was loaded. The document is made again when
what is loaded has changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import orjson
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from app.control_plane import ControlPlane, Served
from app.errors import CohortError
from app.rest.errors import STATUS
from app.tensors import Array, Arrays, TensorSpec

Schema = dict[str, Any]

LARGEST_EXAMPLE = 2048
"""Values in an example; what is larger nobody reads, and it stops the page."""

ERROR: Schema = {
    "title": "Error",
    "description": "Every error, on every route.",
    "type": "object",
    "properties": {
        "error": {"type": "string", "description": "a sentence"},
        "code": {"type": "string", "description": "its name, also in the metrics"},
    },
    "required": ["error", "code"],
}
ASKING = (400, 404, 413, 415, 429, 500, 503, 504)
"""What a request to a model may be answered with beside 200."""


def install(app: FastAPI, plane: ControlPlane) -> None:
    """Have `app` describe itself as it is whenever it is asked."""
    made: tuple[tuple[Served, ...], Schema] | None = None

    def openapi() -> Schema:
        nonlocal made
        served = plane.served()
        if made is None or made[0] is not served:
            made = served, document(app, served)
        return made[1]

    app.openapi = openapi  # type: ignore[method-assign] # the way FastAPI documents


def document(app: FastAPI, served: Sequence[Served]) -> Schema:
    """The whole OpenAPI document for `app` with these versions loaded."""
    whole: Schema = get_openapi(
        title=app.title,
        version=app.version,
        summary=app.summary,
        description=error_table(),
        routes=app.routes,
    )
    components = whole.setdefault("components", {}).setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):  # FastAPI's 422 is our 400
        components.pop(unused, None)
    components["Error"] = ERROR
    for path, operations in whole["paths"].items():
        for operation in operations.values():
            _tell_errors(path, operation)
    own: Schema = {}
    for version in served:
        own |= paths_of(version)
    whole["paths"] = own | whole["paths"]
    whole["tags"] = [
        {"name": _tag(name), "description": "This model's own paths."}
        for name in dict.fromkeys(version.model for version in served)
    ]
    return whole


def error_table() -> str:
    """The statuses of all errors as a Markdown table, from the table that gives them."""
    rows = [
        f"| {kind.__name__} | {int(status)} |"
        for kind, status in STATUS.items()
        if kind.__name__ != "Cancelled"
    ]
    return "\n".join(
        [
            'Every error is `{"error": "a sentence", "code": "InvalidInput"}`:',
            "",
            "| code | status |",
            "|---|---|",
            *rows,
        ]
    )


def _tell_errors(path: str, operation: Schema) -> None:
    """Leave FastAPI's 422 out, which is 400 here, and add what any such route may answer."""
    responses = operation.setdefault("responses", {})
    statuses = {int(status) for status in responses if status.isdigit() and int(status) >= 400}
    if "422" in responses:
        del responses["422"]
        statuses = statuses - {422} | {400}
    if "{" in path:
        statuses |= {404, 503}  # 503 before the first look at the models
    if path.endswith("/ready"):
        statuses.add(503)
    if "requestBody" in operation:
        statuses |= {400, 413, 415}
    responses |= {
        str(status): response for status, response in error_responses(sorted(statuses)).items()
    }


def error_responses(statuses: Sequence[int]) -> dict[int, Schema]:
    """Errors as FastAPI takes them under `responses`."""
    return {status: _error_response(status) for status in statuses}


def _error_response(status: int) -> Schema:
    names = [kind.__name__ for kind, one in STATUS.items() if one == status and _told(kind)]
    response: Schema = {
        "description": ", ".join(names) or "refused",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    if status in (429, 503):
        response["headers"] = {
            "Retry-After": {"description": "seconds", "schema": {"type": "integer", "minimum": 1}}
        }
    return response


def _told(kind: type[CohortError]) -> bool:
    return kind.__name__ != "Cancelled"  # nobody is there to hear it


# -- one model's own paths


def paths_of(served: Served) -> dict[str, Schema]:
    """The paths of one version; those without a version in them, too, where it is the default."""
    pinned = f"/versions/{served.version}"
    return {
        f"/models/{served.model}{place}/predict": {"post": _predict(served, place)}
        for place in (["", pinned] if served.default else [pinned])
    }


def _predict(served: Served, place: str) -> Schema:
    which = f"version {served.version}" if place else "the version that answers by default"
    return _operation(
        served,
        f"predict {served.model}{place}",
        f"Ask {served.model}{', ' + which if place else ''}",
        request=request_schema(served),
        examples=examples(served),
        answer=answer_schema(served),
    )


def _operation(
    served: Served,
    name: str,
    summary: str,
    *,
    request: Schema,
    examples: Mapping[str, Schema],
    answer: Schema,
) -> Schema:
    content: Schema = {"schema": request}
    if examples:
        content["examples"] = dict(examples)
    return {
        "tags": [_tag(served.model)],
        "summary": summary,
        "description": describe(served),
        "operationId": "".join(one if one.isalnum() else "_" for one in name),
        "requestBody": {"required": True, "content": {"application/json": content}},
        "responses": {
            "200": {
                "description": "The answer",
                "content": {"application/json": {"schema": answer}},
            },
            **{str(status): one for status, one in error_responses(ASKING).items()},
        },
    }


def _tag(model: str) -> str:
    return f"model {model}"


def describe(served: Served) -> str:
    """The tensors of a version, as a Markdown table."""
    rows = [
        f"| {kind} | `{spec.name}` | {spec.datatype} | {spec.shape_text} |"
        for kind, specs in (("input", served.inputs), ("output", served.outputs))
        for spec in specs
    ]
    table = ["| | name | datatype | shape |", "|---|---|---|---|", *rows]
    if served.example is not None and not examples(served):
        table += ["", "Its inputs are too large to show an example here."]
    return "\n".join(table)


def request_schema(served: Served) -> Schema:
    """What `/predict` takes for this version."""
    carried = [spec.name for spec in served.outputs if spec.carried]
    common: Schema = {
        "outputs": {
            "description": "which outputs to answer with; all where it is left out",
            "type": "array",
            "items": {"enum": carried},
            "minItems": 1,
            "uniqueItems": True,
        },
        "id": {"type": "string", "description": "given back in the answer"},
        "timeout_ms": {
            "type": "number",
            "exclusiveMinimum": 0,
            "description": "give up after this long",
        },
    }
    by_name = _object({"inputs": named(served.inputs), **common}, required=["inputs"])
    if len(served.inputs) != 1:
        return by_name
    simple = _object({"input": array(served.inputs[0]), **common}, required=["input"])
    return {"oneOf": [{"title": "By name", **by_name}, {"title": "Simple", **simple}]}


def answer_schema(served: Served) -> Schema:
    """What `/predict` answers for this version."""
    outputs = [spec for spec in served.outputs if spec.carried]
    common: Schema = {
        "model": {"const": served.model},
        "version": {"type": "string"},
        "variant": {"type": "string"},
        "id": {"type": "string"},
        "inference_time_ms": {"type": "number", "minimum": 0},
    }
    always = ["model", "version", "inference_time_ms"]
    some = _object({spec.name: array(spec) for spec in outputs}) | {"minProperties": 1}
    by_name = _object({**common, "outputs": some}, required=[*always, "outputs"])
    if len(served.inputs) != 1:
        return by_name
    prediction = {"anyOf": [*(array(spec) for spec in outputs), some]}
    simple = _object({**common, "prediction": prediction}, required=[*always, "prediction"])
    return {"oneOf": [by_name, simple]}


def examples(served: Served) -> dict[str, Schema]:
    """Requests that work as they are; none where they would be too large to read."""
    arrays = served.example
    if arrays is None or sum(one.size for one in arrays.values()) > LARGEST_EXAMPLE:
        return {}
    values = listed(arrays)
    shown: dict[str, Schema] = {"by name": {"value": {"inputs": values}}}
    if len(served.inputs) == 1:
        shown["as tutorials write it"] = {"value": {"input": values[served.inputs[0].name]}}
    return shown


def listed(arrays: Arrays) -> dict[str, Any]:
    """Arrays as nested lists of the shortest numbers that stand for the same values."""
    return {name: _listed(one) for name, one in arrays.items()}


def _listed(value: Array) -> Any:
    if value.dtype.kind == "O":
        return [_text(one) for one in value.flat] if value.ndim == 1 else _nested(value)
    plain = value if value.dtype.kind in "biuf" else value.astype(np.float32)
    return orjson.loads(
        orjson.dumps(np.ascontiguousarray(plain), option=orjson.OPT_SERIALIZE_NUMPY)
        if plain.ndim
        else orjson.dumps(plain[()], option=orjson.OPT_SERIALIZE_NUMPY)
    )


def _nested(value: Array) -> Any:
    return _text(value[()]) if not value.ndim else [_nested(np.asarray(one)) for one in value]


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


# -- tensors as JSON schemas


def named(specs: Sequence[TensorSpec]) -> Schema:
    """All of `specs` by name, and nothing else."""
    return _object(
        {spec.name: array(spec) for spec in specs}, required=[spec.name for spec in specs]
    )


def array(spec: TensorSpec) -> Schema:
    """A tensor as nested arrays; open dimensions take any length from one on."""
    about = f"{spec.datatype} {spec.shape_text}"
    if spec.shape is None:
        return {"description": about}
    schema = element(spec.datatype)
    for size in reversed(spec.shape):
        schema = {"type": "array", "items": schema}
        if isinstance(size, int):
            schema |= {"minItems": size, "maxItems": size}
        else:
            schema |= {"minItems": 1}
    return {**schema, "description": about}


def element(datatype: str) -> Schema:
    """One value of a tensor; anything for what is no tensor."""
    if datatype == "BOOL":
        return {"type": "boolean"}
    if datatype == "BYTES":
        return {"type": "string"}
    return dict(NUMBERS.get(datatype, {}))


def _numbers() -> Iterator[tuple[str, Schema]]:
    for bits in (8, 16, 32, 64):
        for name, limits in (
            (f"INT{bits}", (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)),
            (f"UINT{bits}", (0, 2**bits - 1)),
        ):
            yield name, {"type": "integer", "minimum": limits[0], "maximum": limits[1]}
    for name, largest in (
        ("FP16", float(np.finfo(np.float16).max)),
        ("BF16", 3.3895313892515355e38),
        ("FP32", float(np.finfo(np.float32).max)),
        ("FP64", float(np.finfo(np.float64).max)),
    ):
        yield name, {"type": "number", "minimum": -largest, "maximum": largest}


NUMBERS: Mapping[str, Schema] = dict(_numbers())


def _object(properties: Schema, *, required: Sequence[str] = ()) -> Schema:
    schema: Schema = {
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }
    return schema | ({"required": list(required)} if required else {})
