"""Small requests of TensorFlow Serving's API, answered together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from itertools import accumulate, pairwise
from typing import Any

import orjson

from cohort.codec import RowRequest, RunOutputs, Selection, flat_rows, nested_texts
from cohort.codec.json_body import parse_json
from cohort.codec.templates import Parts, ResponseTemplate, Shapes, Text, label_parts, object_parts
from cohort.http.calls import JSON, FixedHeaders
from cohort.http.version_headers import version_headers
from cohort.tensors import Array


def _text(selection: Selection, _: Shapes, *, by_row: bool, top: int) -> Text:
    """Return a response as `V1Request.encode` writes it, for `instances` if `by_row`."""
    if by_row and len(selection.names) > 1:
        values: Parts = [b"[", _row_objects, b"]"]
    else:
        values = object_parts(selection.names, nested_texts, unnamed=True)
    key = b'{"predictions":' if by_row else b'{"outputs":'
    values += label_parts(selection, top)
    return Text([key, *values, b"}"], _headers(selection.version, selection.variant))


def _row_objects(run: RunOutputs) -> Sequence[bytes] | None:
    """Return the rows of each request. Each row is an object with a row of each output."""
    written = _ROW.write(run._replace(counts=[1] * sum(run.counts)))
    if written is None:
        return None
    rows = [row for row, _ in written]
    ends = accumulate(run.counts, initial=0)
    return [b",".join(rows[begin:end]) for begin, end in pairwise(ends)]


def _bare_rows(array: Array, counts: Sequence[int]) -> Sequence[bytes] | None:
    """Return rows in JSON, without the brackets around each."""
    texts = nested_texts(array, counts)
    return None if texts is None else [text[1:-1] for text in texts]


_ROW = ResponseTemplate(None, lambda selection, _: Text(object_parts(selection.names, _bare_rows)))


@lru_cache(1024)
def _headers(version: str, variant: str) -> FixedHeaders:
    return FixedHeaders(version_headers(version, variant, JSON["content-type"]))


@lru_cache(256)
def _template(by_row: bool, top: int) -> ResponseTemplate:
    return ResponseTemplate(None, partial(_text, by_row=by_row, top=top), top=top)


BY_ROW, BY_COLUMN = _template(True, 0), _template(False, 0)


def read_v1_rows(body: bytes, top: int = 0) -> tuple[Any, RowRequest | None]:
    """Parse a body that may hold rows for one input and nothing else.

    Return the document and its rows, or None instead of rows for any other body. Raises
    InvalidInput if the body is not JSON.

    top: Labels per row that the query requests; 0 if it does not.
    """
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return parse_json(body), None  # raises with the reason
    if document.__class__ is not dict or len(document) != 1:
        return document, None
    rows, template = document.get("instances"), BY_ROW
    if rows is None:
        rows, template = document.get("inputs"), BY_COLUMN
    if (found := flat_rows(rows)) is None:
        return document, None
    if top:
        template = _template(template is BY_ROW, top)
    values, count = found
    return document, RowRequest(body, document, None, None, None, values, count, template, None)
