"""JSON documents as responses, without FastAPI's copy of each value."""

from __future__ import annotations

from collections.abc import Mapping

import orjson
from fastapi import Response


def json_response(document: object, headers: Mapping[str, str] | None = None) -> Response:
    """Write a document that is already plain JSON. FastAPI would first copy it value by value."""
    body = orjson.dumps(document, option=orjson.OPT_NON_STR_KEYS)
    return Response(body, headers=headers, media_type="application/json")
