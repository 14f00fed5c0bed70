"""Sequence of a request: Triton's parameters `sequence_id`, `sequence_start` and `sequence_end`.

The header x-sequence-id can also carry the id, so that load balancers can read it.
https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_sequence.md
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from cohort.codec.json_tensors import shown
from cohort.errors import InvalidInput, quoted

MAX_ID = 256

EXACT_TO = 2.0**53
"""Integers below this bound are exact as floats; larger ids could collide with other ids."""


class AskedSequence(NamedTuple):
    """The sequence parameters of a request.

    id: The id as text; 7 and "7" are the same sequence.
    start: True if the sequence starts or restarts with this request.
    end: True if the sequence ends with this request.
    """

    id: str
    start: bool
    end: bool


def read_sequence(parameters: Mapping[str, object], header: str = "") -> AskedSequence:
    """Read the parameters of a request.

    header: The value of x-sequence-id; default "": not sent.

    Raises InvalidInput, also if parameter and header name different sequences.
    """
    given = parameters.get("sequence_id")
    text = header if given is None or given in (0, "") else _text(given)
    if not text:
        raise InvalidInput(
            "this model has state: send the parameter sequence_id, a number or a string. Add "
            "sequence_start: true to the first request of a sequence, and sequence_end: true to "
            "the last"
        )
    if header and header != text:
        raise InvalidInput(
            f"sequence_id is {quoted(text)}, but the header x-sequence-id is {quoted(header)}: "
            "send one of them, or the same in both"
        )
    if len(text) > MAX_ID:
        raise InvalidInput(
            f"sequence_id must have at most {MAX_ID} characters, got {len(text)}: {quoted(text)}"
        )
    return AskedSequence(
        text, _flag(parameters, "sequence_start"), _flag(parameters, "sequence_end")
    )


def _text(given: object) -> str:
    if isinstance(given, float) and given.is_integer() and abs(given) < EXACT_TO:
        given = int(given)
    if isinstance(given, bool) or not isinstance(given, int | str):
        raise InvalidInput(f"sequence_id must be a whole number or a string, got {shown(given)}")
    return str(given)


def _flag(parameters: Mapping[str, object], name: str) -> bool:
    value = parameters.get(name, False)
    if isinstance(value, str) and value.lower() in {"true", "false"}:
        return value.lower() == "true"
    if isinstance(value, bool) or value in (0, 1):
        return bool(value)
    raise InvalidInput(f"{name} of a sequence must be true or false, got {shown(value)}")
