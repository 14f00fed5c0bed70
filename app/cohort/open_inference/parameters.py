"""The `parameters` of a request, an input and a requested output: what is known and what is not.

Known ones are checked; any other, `priority` and `sequence_id` among them, is let through and
changes nothing. A parameter that is null, or has no value over gRPC, is one that was not sent. A
whole number may be written as a decimal string: some clients' parameters are all strings, and
Triton's own clients send numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from cohort.codec.json_tensors import shown
from cohort.errors import InvalidInput, quoted

Parameters = Mapping[str, object]
"""Strings, booleans and numbers by name; over REST lists and objects, too, which none takes."""

NO_PARAMETERS: Parameters = MappingProxyType({})

LARGEST_NUMBER = 2**64 - 1
"""What gRPC's largest integers hold, and Triton's."""


def check_no_shared_memory(place: str, parameters: Parameters) -> None:
    """Raise InvalidInput where a tensor is said to be in shared memory."""
    for name in parameters:
        if name.startswith("shared_memory_"):
            raise InvalidInput(f"{place}.{quoted(name)[1:-1]}: shared memory is not supported")


def read_timeout(parameters: Parameters) -> float | None:
    """`timeout`, in microseconds, as seconds; None where there is none, or it is 0.

    Triton's clients send 0 by default. Raises InvalidInput.
    """
    microseconds = whole_number("parameters.timeout", parameters.get("timeout"))
    return microseconds / 1e6 if microseconds else None


def whole_number(place: str, value: object) -> int:
    """A number from 0, perhaps as a decimal string; 0 where there is none. Raises InvalidInput."""
    if value is None:
        return 0
    number = value
    if isinstance(value, str) and len(value) <= 20 and value.isascii() and value.isdecimal():
        number = int(value)
    if number.__class__ is not int or not 0 <= number <= LARGEST_NUMBER:
        raise InvalidInput(f"{place} must be a whole number >= 0, got {shown(value)}")
    return number


def boolean(place: str, value: object, *, default: bool = False) -> bool:
    """`true` or `false`; `default` where there is none. Raises InvalidInput."""
    if value is None:
        return default
    if not isinstance(value, bool):
        raise InvalidInput(f"{place} must be true or false, got {shown(value)}")
    return value
