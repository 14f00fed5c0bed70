"""The JSON of a request's body."""

from __future__ import annotations

from codecs import BOM_UTF8

import orjson

from cohort.codec.long_json import CUT_FROM_BYTES, read_long
from cohort.codec.missing_values import load_json
from cohort.errors import InvalidInput


def parse_json(body: bytes) -> object:
    """Parse a body; a long body has LongLists in it. Raises InvalidInput if it is not JSON.

    A byte order mark is skipped: https://www.rfc-editor.org/rfc/rfc8259#section-8.1
    """
    body = body.removeprefix(BOM_UTF8)
    if len(body) >= CUT_FROM_BYTES:
        try:
            return read_long(body)
        except InvalidInput:
            _check_start(body)
            raise
    try:
        return load_json(body)
    except orjson.JSONDecodeError as error:
        if not body:
            raise InvalidInput("the body is empty; a JSON object is expected") from None
        _check_start(body)
        raise InvalidInput(f"the body is not valid JSON: {error}{_hint(error)}") from None


_STARTS = {
    b"\x93NUMPY": ".npy: send Content-Type: application/x-npy, by curl with --data-binary",
    b"PK\x03\x04": ".npz or another archive: save one array with numpy.save, and send it as "
    "Content-Type: application/x-npy",
    b"\x89PNG": "PNG: send Content-Type: image/png, by curl with --data-binary",
    b"\xff\xd8\xff": "JPEG: send Content-Type: image/jpeg, by curl with --data-binary",
    b"\x1f\x8b": "gzip: send Content-Encoding: gzip, by curl with --data-binary",
    b"\xff\xfe": "UTF-16: JSON is sent as UTF-8",
    b"\xfe\xff": "UTF-16: JSON is sent as UTF-8",
}
"""Formats by first bytes, each with advice for the sender; JSON never begins with these."""


def _check_start(body: bytes) -> None:
    """Raise InvalidInput for a body whose first bytes belong to another format."""
    for start, what in _STARTS.items():
        if body.startswith(start):
            raise InvalidInput(f"the body is not JSON; it begins like {what}")


def _hint(error: orjson.JSONDecodeError) -> str:
    """Return a hint about text that Python prints and JSON does not allow."""
    there = error.doc[error.pos : error.pos + 4]
    if there.startswith("'"):
        return "; JSON has double quotes, as json.dumps writes them"
    if there.startswith(("NaN", "Inf", "nan", "inf", "-Inf", "-inf", "-NaN")):
        return "; JSON has no infinity, and null for NaN: the binary forms of V2 carry both"
    if there.startswith(("Tru", "Fals", "None")):
        return "; JSON has true, false and null, as json.dumps writes them"
    return ""
