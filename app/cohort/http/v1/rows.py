"""Small requests of TensorFlow Serving's API, answered together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise, repeat
from typing import Any

import orjson

from cohort.codec import RowRequest, RunOutputs, escaped, flat_rows, nested_texts
from cohort.codec.json_body import parse_json
from cohort.http.calls import JSON, FixedHeaders
from cohort.http.version_headers import version_headers


class V1Answer:
    """A form of response.

    by_row: Whether the request had `instances`.
    """

    __slots__ = ("_by_row",)
    outputs = None

    def __init__(self, *, by_row: bool) -> None:
        self._by_row = by_row

    def write(
        self, run: RunOutputs, counts: Sequence[int], ids: Sequence[str | None]
    ) -> Iterable[tuple[bytes, object]] | None:
        """As `RowAnswer.write`, and as `V1Request.encode`."""
        del ids
        by_row = self._by_row and len(run.arrays) > 1
        texts = []
        for array in run.arrays:
            text = nested_texts(array, [1] * sum(counts) if by_row else counts)
            if text is None:
                return None
            texts.append([one[1:-1] for one in text] if by_row else text)
        form = _form(run.names, self._by_row)
        bodies = [form % one for one in zip(*texts, strict=True)]
        if by_row:
            ends = accumulate(counts, initial=0)
            rows = [b",".join(bodies[begin:end]) for begin, end in pairwise(ends)]
            bodies = [b'{"predictions":[%b]}' % one for one in rows]
        return zip(bodies, repeat(_headers(run.version, run.variant)), strict=False)


@lru_cache(1024)
def _form(names: tuple[str, ...], by_row: bool) -> bytes:
    if len(names) == 1:
        return b'{"predictions":%b}' if by_row else b'{"outputs":%b}'
    values = b"{%b}" % b",".join([escaped(orjson.dumps(name)) + b":%b" for name in names])
    return values if by_row else b'{"outputs":%b}' % values


@lru_cache(1024)
def _headers(version: str, variant: str) -> FixedHeaders:
    return FixedHeaders(version_headers(version, variant, JSON["content-type"]))


BY_ROW, BY_COLUMN = V1Answer(by_row=True), V1Answer(by_row=False)


def read_v1_rows(body: bytes) -> tuple[Any, RowRequest | None]:
    """Parse a body that may hold rows for one input, and nothing else.

    Gives the document, and what it asks for; None in the place of that for any other body. Raises
    InvalidInput where the body is not JSON.
    """
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return parse_json(body), None  # which says what is wrong
    if document.__class__ is not dict or len(document) != 1:
        return document, None
    rows, answer = document.get("instances"), BY_ROW
    if rows is None:
        rows, answer = document.get("inputs"), BY_COLUMN
    if (found := flat_rows(rows)) is None:
        return document, None
    return document, (None, None, None, *found, answer, None)
