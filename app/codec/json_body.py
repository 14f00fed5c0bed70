"""The JSON of a request's body."""

from __future__ import annotations

import orjson

from app.codec.long_json import CUT_FROM_BYTES, read_long
from app.errors import InvalidInput


def parse_json(body: bytes) -> object:
    """Parse a body; a long one has LongLists in it. Raises InvalidInput where it is not JSON."""
    if len(body) >= CUT_FROM_BYTES:
        return read_long(body)
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if not body:
            raise InvalidInput("the body is empty; a JSON object is expected") from None
        raise InvalidInput(f"the body is not valid JSON: {error}{_hint(error)}") from None


def _hint(error: orjson.JSONDecodeError) -> str:
    """What to do about what Python prints and JSON has not."""
    there = error.doc[error.pos : error.pos + 4]
    if there.startswith("'"):
        return "; JSON has double quotes, as json.dumps writes them"
    if there.startswith(("NaN", "Inf", "nan", "inf", "-Inf", "-inf")):
        return "; JSON has no NaN and no infinity: the binary forms of V2 carry them"
    if there.startswith(("Tru", "Fals", "None")):
        return "; JSON has true, false and null, as json.dumps writes them"
    return ""
