"""The JSON of a request's body."""

from __future__ import annotations

import orjson

from app.errors import InvalidInput


def parse_json(body: bytes) -> object:
    """Parse a body. Raises InvalidInput where it is not JSON."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if not body:
            raise InvalidInput("the body is empty; a JSON object is expected") from None
        raise InvalidInput(f"the body is not valid JSON: {error}") from None
