"""The paths of a loaded version, with its tensors in their schemas."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Any

from cohort.codec.detections import CORNERS
from cohort.codec.labels import Labeller, labellers_of
from cohort.errors import printable
from cohort.http.calls import HEADER_LENGTH
from cohort.http.errors import HTTP_STATUS
from cohort.http.openapi.answers import predict_answers, v1_answers, v2_answers
from cohort.http.openapi.binary_calls import binary_calls
from cohort.http.openapi.examples import (
    are_shortened,
    predict_examples,
    presented,
    v1_examples,
    v2_examples,
)
from cohort.http.openapi.files import takes_files
from cohort.http.openapi.schemas import (
    NOTHING,
    SIGNATURE_NAME,
    Schema,
    any_of,
    array,
    closed,
    columns_of,
    first_of,
    named,
    names_of,
    transportable,
)
from cohort.http.openapi.v2_schemas import v2_request_schema, v2_response_schema
from cohort.operating import ServedModel

INFERENCE_ERRORS = (400, 404, 409, 413, 415, 429, 500, 503, 504)
"""Error statuses of an inference."""

BINARY: Schema = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
"""A body of bytes, which a page reads from a file."""


def paths_of(served: ServedModel, *, root: str = "", needs_key: bool = False) -> dict[str, Schema]:
    """Return the paths with this version, and those without a version if it is the default.

    root: The prefix of these paths in the server's address. Default: none.
    needs_key: True if callers need a key. Default: False.
    """
    pinned = f"/versions/{served.version}"
    places = ["", pinned] if served.default else [pinned]
    forms = [
        (
            "/models/{}/predict",
            "Predict with {}",
            request_schema(served),
            predict_examples(served),
            response_schema(served),
            predict_answers(served),
        ),
        (
            "/v1/models/{}:predict",
            "Predict with {} (TensorFlow Serving)",
            v1_request_schema(served),
            v1_examples(served),
            v1_response_schema(served),
            v1_answers(served),
        ),
        (
            "/v2/models/{}/infer",
            "Infer with {} (Open Inference Protocol)",
            v2_request_schema(served),
            v2_examples(served),
            v2_response_schema(served),
            v2_answers(served),
        ),
    ]
    paths: dict[str, Schema] = {}
    for place in places:
        which = f"{served.model}, version {served.version}" if place else served.model
        infer = f"/v2/models/{served.model}{place}/infer"
        about = describe_tensors(served)
        if are_shortened(served) and transportable(served.outputs):
            about += "\n\n" + binary_calls(served, infer, root=root, needs_key=needs_key)
        for path, summary, request, examples, response, answers in forms:
            paths[path.format(served.model + place)] = _post(
                tag=tag(served.model),
                summary=summary.format(which),
                description=about,
                request=request,
                examples=presented(served, examples),
                response=response,
                answers=answers,
            )
        takes_binary(paths[infer]["post"])
        for form in ("/models/{}/predict", "/v1/models/{}:predict"):
            takes_top(paths[form.format(served.model + place)]["post"], served)
        takes_files(paths[f"/models/{served.model}{place}/predict"]["post"], served)
    return paths


def takes_binary(operation: Schema) -> None:
    """Document that an operation also accepts and returns binary data."""
    operation["requestBody"]["content"] |= BINARY
    operation["responses"]["200"]["content"] |= BINARY
    header = {
        "name": HEADER_LENGTH.title(),
        "in": "header",
        "description": "Length in bytes of the JSON before the binary data; 0 if the whole body "
        "is the data of the only input.",
        "schema": {"type": "integer", "minimum": 0},
    }
    operation.setdefault("parameters", []).append(header)


def takes_top(operation: Schema, served: ServedModel) -> None:
    """Document the parameter `top` of an operation, if this version has labels."""
    if labels_schema(served):
        top = {
            "name": "top",
            "in": "query",
            "description": "number of labels per row, best first",
            "schema": {"type": "integer", "minimum": 1},
        }
        operation.setdefault("parameters", []).append(top)


def tag(model: str) -> str:
    """Return the heading of a model's own paths."""
    return f"model {model}"


def _post(
    *,
    tag: str,
    summary: str,
    description: str,
    request: Schema,
    examples: Schema,
    response: Schema,
    answers: Mapping[str, Any],
) -> Schema:
    content: Schema = {"schema": request} | ({"examples": examples} if examples else {})
    answered: Schema = {"schema": response}
    if answers:
        answered["examples"] = {name: {"value": one} for name, one in answers.items()}
    succeeded = {
        "description": "The response",
        "content": {"application/json": answered},
    }
    return {
        "post": {
            "tags": [tag],
            "summary": summary,
            "description": description,
            "requestBody": {"required": True, "content": {"application/json": content}},
            "responses": {"200": succeeded, **error_responses(INFERENCE_ERRORS)},
        }
    }


def error_responses(statuses: Sequence[int], form: str = "") -> dict[str, Schema]:
    """Return references to `error_components` for errors with these statuses, in a form."""
    return {str(status): {"$ref": f"#/components/responses/{form}{status}"} for status in statuses}


def error_components(statuses: Collection[int], form: str = "") -> dict[str, Schema]:
    """Return the responses of errors with these statuses, by status.

    form: The API whose own form they have, before `Error` in the schema's name; default: none.
    """
    return {f"{form}{status}": _error_response(status, form) for status in sorted(statuses)}


def _error_response(status: int, form: str) -> Schema:
    names = [
        kind.__name__
        for kind, one in HTTP_STATUS.items()
        if one == status and kind.__name__ != "Cancelled"  # the client is gone
    ]
    response: Schema = {
        "description": " or ".join(names) or HTTPStatus(status).phrase,
        "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{form}Error"}}},
    }
    if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        seconds = {"description": "seconds", "schema": {"type": "integer", "minimum": 1}}
        response["headers"] = {"Retry-After": seconds}
    return response


def describe_tensors(served: ServedModel) -> str:
    """Return the tensors of a version as a Markdown table."""
    lines = ["| | name | datatype | shape |", "|---|---|---|---|"]
    for kind, specs in (
        ("input", served.inputs),
        ("optional input", served.optional_inputs),
        ("output", served.outputs),
    ):
        shown = first_of(specs)
        lines += [
            f"| {kind} | {_cell(spec.name)} | {_cell(spec.datatype)} | {_cell(spec.shape_text)} |"
            for spec in shown
        ]
        if len(shown) < len(specs):
            lines.append(f"| {kind} | and {len(specs) - len(shown):,} more | | |")
    if not transportable(served.outputs):
        lines += ["", "No output of this model can be sent over the wire."]
    elif served.example is not None and not predict_examples(served):
        lines += ["", "The published example cannot be written in JSON."]
    return "\n".join(lines)


def _cell(text: str) -> str:
    """Return text from a model's file as code for a table cell."""
    return "`" + printable(text).replace("`", "'").replace("|", "¦") + "`"


# -- the simple API


def request_schema(served: ServedModel) -> Schema:
    """Return the schema of a `/predict` request for this version. Optional keys may be null."""
    common: Schema = {
        "model": {"type": ["string", "null"], "enum": [served.model, None]},
        "version": {"type": ["string", "null"], "enum": [served.version, None]},
        "outputs": {
            "description": "the requested outputs; all if omitted",
            "type": ["array", "null"],
            "items": names_of(transportable(served.outputs)),
            "minItems": 1,
            "maxItems": len(served.outputs),
        },
        "id": {"type": ["string", "null"], "description": "returned with the response"},
        "timeout_ms": {
            "type": ["number", "null"],
            "exclusiveMinimum": 0,
            "description": "time limit in milliseconds",
        },
        "parameters": {
            "type": ["object", "null"],
            "additionalProperties": {"$ref": "#/components/schemas/ParameterValue"},
        },
    }
    by_name = closed({"inputs": named(served.inputs, served.optional_inputs), **common}, ["inputs"])
    forms = [{"title": "By name", **by_name}]
    if len(served.inputs) == 1:
        simple = closed({"input": array(served.inputs[0]), **common}, ["input"])
        forms.append({"title": "Simple", **simple})
    if columns := columns_of(served.inputs):
        row = {"type": "array", "minItems": 1, "items": named(columns)}
        row["description"] = "null is a missing value"
        forms.append({"title": "Rows", **closed({"rows": row, **common}, ["rows"])})
    return {"oneOf": forms} if len(forms) > 1 else by_name


def response_schema(served: ServedModel) -> Schema:
    """Return the schema of a `/predict` response of this version."""
    outputs = transportable(served.outputs)
    common: Schema = {
        **names_schema(served),
        "model": {"const": served.model},
        "version": {"type": "string"},
        "variant": {"type": "string"},
        "id": {"type": "string"},
        "inference_time_ms": {"type": "number", "minimum": 0},
    }
    always = ["model", "version", "inference_time_ms"]
    some = named(outputs) | {"minProperties": 1}
    some.pop("required", None)  # a request may select some
    by_name = closed({**common, "outputs": some}, [*always, "outputs"])
    if len(served.inputs) != 1:
        return by_name
    # One output, or all by name. Some generators write no code for a union.
    several = {"description": "the requested output, or all by name"}
    prediction = array(outputs[0]) if len(outputs) == 1 else several
    simple = closed({**common, "prediction": prediction}, [*always, "prediction"])
    return {"oneOf": [{"title": "By name", **by_name}, {"title": "Simple", **simple}]}


# -- TensorFlow Serving's


def v1_request_schema(served: ServedModel) -> Schema:
    """Return the schema of a `:predict` request: rows or columns, by name or of the only input."""
    signature = {"signature_name": SIGNATURE_NAME}
    columns = [("Columns", named(served.inputs, served.optional_inputs))]
    rows = []
    if all(spec.shape for spec in served.inputs):
        items = [replace(spec, shape=spec.shape[1:]) for spec in served.inputs if spec.shape]
        row = {"type": "array", "minItems": 1, "items": named(items)}
        rows.append(("Rows", row))
    if len(served.inputs) == 1:
        only = array(served.inputs[0])
        columns.append(("Only column", only))
        rows += [("Only rows", only | {"minItems": 1}) for spec in served.inputs if spec.shape]
    forms = [("inputs", "instances", *one) for one in columns]
    forms += [("instances", "inputs", *one) for one in rows]
    return any_of(
        [
            {
                "title": title,
                "type": "object",
                "properties": {**signature, one: schema, other: NOTHING},
                "required": [one],
            }
            for one, other, title, schema in forms
        ]
    )


def v1_response_schema(served: ServedModel) -> Schema:
    """Return the schema of a `:predict` response of this version."""
    outputs = transportable(served.outputs)
    if len(outputs) == 1:
        columns, rows = array(outputs[0]), array(outputs[0])
    else:
        columns = named(outputs)
        items = [replace(spec, shape=spec.shape[1:] if spec.shape else None) for spec in outputs]
        rows = {"type": "array", "items": named(items)}
    names = names_schema(served)
    by_row = closed({"predictions": rows, **names}, ["predictions"] if names else [])
    by_column = closed({"outputs": columns, **names}, ["outputs"] if names else [])
    return {
        "oneOf": [
            by_row | {"title": "By row", "minProperties": 1},
            by_column | {"title": "By column", "minProperties": 1},
        ]
    }


# -- labels, and objects in pictures


def names_schema(served: ServedModel) -> Schema:
    """Return the schemas of `labels` and `detections`, if this version has them."""
    return {**labels_schema(served), **_detections_schema(served)}


def _detections_schema(served: ServedModel) -> Schema:
    found = [spec for spec in served.outputs if spec.detections is not None]
    if not found:
        return {}
    if len(found) > 1:
        return {"detections": {"description": "the objects in each picture, by output"}}
    about = found[0].detections
    unit = "pixels" if about is None or about.unit == "pixels" else "parts of width and height"
    number: Schema = {"type": "number"}
    box = closed(dict.fromkeys(CORNERS, number), list(CORNERS)) | {"description": unit}
    thing = closed({"label": {"type": "string"}, "score": number, "box": box}, ["score", "box"])
    pictures = {"type": "array", "items": {"type": "array", "items": thing}}
    return {"detections": pictures | {"description": "the objects in each picture, best first"}}


def labels_schema(served: ServedModel) -> Schema:
    """Return the schema of the responses' `labels`, or {} if this version has no labels."""
    found = [one for one in labellers_of(served.outputs, served.labels) if one is not None]
    if not found:
        return {}
    always = [one for one in found if one.spec.named is not None]
    when = "" if always else "; only if the request has `top`"
    if len(found) == 1:
        return {"labels": _labels_of(found[0]) | {"description": f"the labels of each row{when}"}}
    about = f"the labels of each row, of one output, or of several by name{when}"
    return {"labels": {"description": about}}


def _labels_of(labeller: Labeller) -> Schema:
    label: Schema = {
        "type": "object",
        "properties": {"label": {"type": "string"}, "score": {"type": "number"}},
        "required": ["label", "score"],
        "additionalProperties": False,
    }
    if labeller.spec.named is None or labeller.is_list(0):
        label = {"type": "array", "items": label}
    else:  # it is a list if `top` is sent
        label = {"anyOf": [label, {"type": "array", "items": label}]}
    for _ in (labeller.spec.shape or ())[1:-1]:
        label = {"type": "array", "items": label}
    return {"type": "array", "items": label}
