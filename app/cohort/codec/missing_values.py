"""Missing values: null in JSON, empty cells in tables, and the word NaN that Python writes."""

from __future__ import annotations

import re
import threading
from math import isnan
from typing import Any

import numpy as np
import orjson

from cohort.errors import InvalidInput, quoted
from cohort.tensors import BY_NAME

Missing = float | int | str | None
"""The replacement for a missing value, as in `TensorSpec.missing`."""

FILLED_LATER = 1.0
"""Placeholder in a list until the array gets NaN; every float datatype has this value."""

NO_WORD = ""
"""Replacement for a missing text that has no other one; a model may receive NaN for it."""

HAVE_NAN = frozenset(
    row.name
    for row in BY_NAME.values()
    if row.kind == "float" and np.isnan(np.array(np.nan).astype(row.dtype).astype(np.float64))
)
"""The datatypes that have NaN."""


def stand_in(datatype: str, missing: Missing) -> tuple[Any, bool]:
    """Return the replacement of a missing value in a list, and True if it is NaN in the array.

    The replacement is None if the datatype does not have one.
    """
    if datatype in HAVE_NAN and (
        missing is None or (isinstance(missing, float) and isnan(missing))
    ):
        return FILLED_LATER, True
    if missing is None:
        return None, False
    kind = BY_NAME[datatype].kind
    if kind == "text":
        return str(missing), False
    if kind == "bool":
        return bool(missing), False
    return (int(missing) if kind == "int" else float(missing)), False


def missing_value(name: str, datatype: str, what: str, place: str) -> InvalidInput:
    """Make the error for a missing value without a replacement.

    what: The form in which it was sent, such as "null".
    place: The position, as the end of a sentence.
    """
    kind = BY_NAME[datatype].kind
    float_input = ", or give the model a float input, where it is NaN" if kind == "int" else ""
    return InvalidInput(
        f"input {quoted(name)} must be {datatype}, got {what}{place}: send a value, or set the "
        f"replacement for a missing one in config.yaml (or pipeline.yaml), under "
        f"inputs.{name}.missing{float_input}"
    )


class _Decoding(threading.local):
    gaps = False


_decoding = _Decoding()


def note_gaps() -> None:
    """Record on this thread that NaN or NO_WORD replaced a missing value."""
    _decoding.gaps = True


def take_gaps() -> bool:
    """Return True if `note_gaps` ran on this thread since the last call, and reset it."""
    gaps, _decoding.gaps = _decoding.gaps, False
    return gaps


_TEXT_OR_NAN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|\bNaN\b', re.DOTALL)


def load_json(text: bytes) -> Any:
    """Parse as `orjson.loads` does; read NaN, which Python's json.dumps writes, as null.

    Raises orjson.JSONDecodeError.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        if b"NaN" not in text:
            raise
        try:
            return orjson.loads(_TEXT_OR_NAN.sub(_null, text))
        except orjson.JSONDecodeError:
            pass
        raise  # the first error: its positions are those of the original text


def _null(found: re.Match[bytes]) -> bytes:
    word = found[0]
    return b"null" if word == b"NaN" else word
