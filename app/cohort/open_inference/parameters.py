"""The `parameters` of a request, an input and a requested output.

Known parameters are checked; all others, such as `priority` and `sequence_id`, are accepted and
ignored. A parameter that is null, or has no value over gRPC, counts as absent. A whole number may
be a decimal string: some clients send only strings, while Triton's own clients send numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from cohort.codec.json_tensors import shown
from cohort.errors import InvalidInput, quoted
from cohort.open_inference.regions import SharedPart

Parameters = Mapping[str, object]
"""Strings, booleans and numbers by name; REST also has lists and objects, which are invalid."""

NO_PARAMETERS: Parameters = MappingProxyType({})

MAX_NUMBER = 2**64 - 1
"""The largest integer of gRPC and of Triton."""


SHARED_MEMORY = "shared_memory_"
_REGION, _SIZE, _OFFSET = (f"{SHARED_MEMORY}{one}" for one in ("region", "byte_size", "offset"))


def check_no_shared_memory(place: str, parameters: Parameters) -> None:
    """Raise InvalidInput if parameters that do not belong to a tensor name shared memory."""
    for name in parameters:
        if name.startswith(SHARED_MEMORY):
            raise InvalidInput(
                f"{place}.{quoted(name)[1:-1]}: only inputs and outputs can be in shared memory"
            )


def is_shared(parameters: Parameters) -> bool:
    """Return True if the parameters place a tensor in shared memory."""
    return parameters.get(_REGION) is not None


def read_shared(place: str, parameters: Parameters) -> SharedPart | None:
    """Return a tensor's location in shared memory, or None if absent. Raises InvalidInput."""
    for name in parameters:
        if name.startswith(SHARED_MEMORY) and name not in {_REGION, _SIZE, _OFFSET}:
            raise InvalidInput(
                f"{place}.{quoted(name)[1:-1]}: the parameters of shared memory are {_REGION}, "
                f"{_SIZE} and {_OFFSET}"
            )
    region = parameters.get(_REGION)
    if region is None:
        return None
    if not isinstance(region, str):
        raise InvalidInput(f"{place}.{_REGION} must be a string, got {shown(region)}")
    if parameters.get(_SIZE) is None:
        raise InvalidInput(f"{place}.{_SIZE} is missing; {_REGION} needs it")
    return SharedPart(
        f"{place}.{_REGION}",
        region,
        whole_number(f"{place}.{_SIZE}", parameters[_SIZE]),
        whole_number(f"{place}.{_OFFSET}", parameters.get(_OFFSET)),
    )


def write_shared(part: SharedPart, size: int) -> dict[str, str | int]:
    """Return the parameters of an output with `size` bytes written to a part."""
    offset = {_OFFSET: part.offset} if part.offset else {}
    return {_REGION: part.region, _SIZE: size, **offset}


def read_timeout(parameters: Parameters) -> float | None:
    """Return `timeout`, which is in microseconds, as seconds; None if it is absent or 0.

    Triton's clients send 0 by default. Raises InvalidInput.
    """
    microseconds = whole_number("parameters.timeout", parameters.get("timeout"))
    return microseconds / 1e6 if microseconds else None


def whole_number(place: str, value: object) -> int:
    """Return a number >= 0, which may be a decimal string; 0 if absent. Raises InvalidInput."""
    if value is None:
        return 0
    number = value
    if isinstance(value, str) and len(value) <= 20 and value.isascii() and value.isdecimal():
        number = int(value)
    if number.__class__ is not int or not 0 <= number <= MAX_NUMBER:
        raise InvalidInput(f"{place} must be a whole number >= 0, got {shown(value)}")
    return number


def boolean(place: str, value: object, *, default: bool = False) -> bool:
    """Return a boolean, or `default` if absent. Raises InvalidInput."""
    if value is None:
        return default
    if not isinstance(value, bool):
        raise InvalidInput(f"{place} must be true or false, got {shown(value)}")
    return value
