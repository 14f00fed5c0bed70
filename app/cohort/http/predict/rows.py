"""Small requests of the simple API, answered together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import orjson

from cohort.codec import (
    MAX_ID,
    Asked,
    RowRequest,
    RunOutputs,
    Selection,
    flat_rows,
    nested_texts,
)
from cohort.codec.json_body import parse_json
from cohort.codec.labels import MAX_TOP
from cohort.codec.templates import (
    Parts,
    ResponseTemplate,
    Shapes,
    Text,
    id_gap,
    label_parts,
    object_parts,
)
from cohort.http.calls import JSON


@lru_cache(256)
def _template(
    single: bool, outputs: tuple[str, ...] | None, identified: bool, top: int
) -> ResponseTemplate:
    """Return how `encode_simple` (if `single`) or `encode_prediction` writes responses.

    identified: True if requests have an id.
    top: Labels per row; 0 to follow the config.
    """

    def text(selection: Selection, _: Shapes) -> Text:
        head = {"model": selection.model, "version": selection.version}
        if selection.variant:
            head["variant"] = selection.variant
        who: Parts = [orjson.dumps(head)[1:-1]]
        if identified:
            who += [b',"id":', id_gap]
        values = object_parts(selection.names, nested_texts, unnamed=single)
        values += label_parts(selection, top)
        time: Parts = [b',"inference_time_ms":', _time_gap]
        if single:
            return Text([b'{"prediction":', *values, *time, b",", *who, b"}"], JSON)
        return Text([b"{", *who, b',"outputs":', *values, *time, b"}"], JSON)

    return ResponseTemplate(outputs, text, top=top)


def _time_gap(run: RunOutputs) -> Sequence[bytes]:
    return [orjson.dumps(int(run.seconds * 1e6) / 1000)] * len(run.counts)


NAMED, SINGLE = _template(False, None, False, 0), _template(True, None, False, 0)


def begins_json(body: bytes) -> bool:
    """Return True if a text body is read as JSON. Browsers may send JSON as text."""
    return body.lstrip()[:1] in (b"{", b"[", b"")


def read_text_rows(body: bytes, *, top: int = 0) -> tuple[Any, RowRequest | None]:
    """Read a body like `read_predict_rows`, but leave plain text to be read alone."""
    return read_predict_rows(body, top=top) if begins_json(body) else (None, None)


def read_predict_rows(body: bytes, top: int = 0) -> tuple[Any, RowRequest | None]:
    """Parse a body that may hold rows for one input, a model, its version, outputs and an id.

    Return the document and its rows, or None instead of rows for any other body. Raises
    InvalidInput if the body is not JSON.

    top: Labels per row that the query requests; 0 if it does not.
    """
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return parse_json(body), None  # raises with the reason
    if document.__class__ is not dict:
        return document, None
    name = id_ = None
    asked: Asked = None
    rows = document.get("input")
    single = rows is not None
    if not single:
        inputs = document.get("inputs")
        if inputs.__class__ is not dict or len(inputs) != 1:
            return document, None
        ((name, rows),) = inputs.items()
    if (found := flat_rows(rows)) is None:
        return document, None
    template = SINGLE if single else NAMED
    if top or len(document) > 1:
        get = document.get
        parameters = get("parameters")
        if parameters is not None and not (top := _only_top(parameters, top)):
            return document, None
        model, version, id_, outputs = get("model"), get("version"), get("id"), get("outputs")
        if outputs is not None:
            outputs = _different_names(outputs)
        if (
            (model is not None and model.__class__ is not str)
            or (id_ is not None and (id_.__class__ is not str or len(id_) > MAX_ID))
            or outputs == ()
            or 1 + sum(one is not None for one in (model, version, id_, outputs, parameters))
            < len(document)
        ):
            return document, None
        asked = model
        if version is not None:
            if version.__class__ is int and version > 0:
                version = str(version)
            elif version.__class__ is not str:
                return document, None
            asked = model, version
        if id_ is not None or outputs is not None or top:
            template = _template(single, outputs, id_ is not None, top)
    values, count = found
    return document, RowRequest(body, document, asked, name, None, values, count, template, id_)


def _different_names(value: object) -> tuple[str, ...]:
    """Return the names in a list of distinct names, or () for anything else."""
    if value.__class__ is not list:
        return ()
    names: list[str] = value
    if any(one.__class__ is not str for one in names) or len(set(names)) < len(names):
        return ()
    return tuple(names)


def _only_top(parameters: Any, top: int) -> int:
    """Return the labels per row if `top` is the only parameter, or 0 to read the body alone."""
    if parameters.__class__ is not dict or len(parameters) != 1:
        return 0
    value = parameters.get("top")
    return value if value.__class__ is int and 0 < value <= MAX_TOP and top in (0, value) else 0
