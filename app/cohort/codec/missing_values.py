"""Missing values: null in JSON, where a table has a gap, and the word NaN that Python writes."""

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
"""What stands for a missing value, as `TensorSpec.missing` says."""

FILLED_LATER = 1.0
"""Stands in a list where the array will have NaN: every float datatype has it."""

NO_WORD = ""
"""Stands for a missing text where nothing else does: a model may be given NaN for it."""

HAVE_NAN = frozenset(
    row.name
    for row in BY_NAME.values()
    if row.kind == "float" and np.isnan(np.array(np.nan).astype(row.dtype).astype(np.float64))
)
"""The datatypes that have NaN."""


def stand_in(datatype: str, missing: Missing) -> tuple[Any, bool]:
    """Give what stands for a missing value in a list, and whether it is NaN in the array.

    The first is None where the datatype has no such value.
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
    """What to say of a missing value that nothing stands for.

    what: How it was sent.
    place: Where, as the end of a sentence.
    """
    kind = BY_NAME[datatype].kind
    float_input = ", or give the model a float input, where it is NaN" if kind == "int" else ""
    return InvalidInput(
        f"input {quoted(name)} takes {datatype}, got {what}{place}: send a value, or say what "
        f"stands for a missing one in config.yaml (or pipeline.yaml), under inputs.{name}.missing"
        f"{float_input}"
    )


class _Decoding(threading.local):
    gaps = False


_decoding = _Decoding()


def note_gaps() -> None:
    """Remember that NaN or NO_WORD stands for a missing value, on this thread."""
    _decoding.gaps = True


def take_gaps() -> bool:
    """Whether that was so on this thread since the last call."""
    gaps, _decoding.gaps = _decoding.gaps, False
    return gaps


_TEXT_OR_NAN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|\bNaN\b', re.DOTALL)


def load_json(text: bytes) -> Any:
    """As `orjson.loads`, and the word NaN is null: Python's json.dumps writes it.

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
        raise  # whose places are those of the text


def _null(found: re.Match[bytes]) -> bytes:
    word = found[0]
    return b"null" if word == b"NaN" else word
