"""What a request asks for in its `parameters`."""

from __future__ import annotations

from collections.abc import Mapping

from app.errors import InvalidInput, quoted
from app.rpc.inference_pb2 import InferParameter


def value_of(parameter: InferParameter) -> bool | int | float | str | None:
    """The value, whichever of its fields holds it; None for none."""
    field = parameter.WhichOneof("parameter_choice")
    return None if field is None else getattr(parameter, field)


def text_of(parameters: Mapping[str, InferParameter], name: str) -> str | None:
    """The parameter under `name` as JSON would write it, text without quotes; None for none."""
    value = value_of(parameters[name]) if name in parameters else None
    if value is None or isinstance(value, str):
        return value
    return str(value).lower() if isinstance(value, bool) else str(value)


def whole(parameters: Mapping[str, InferParameter], name: str) -> int | None:
    """The whole number under `name`; None where it is not there. Raises InvalidInput."""
    if name not in parameters:  # looking it up would make it
        return None
    value = value_of(parameters[name])
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidInput(f"parameter {quoted(name)} must be a whole number of at least 0")
    return value


def timeout_of(parameters: Mapping[str, InferParameter], remaining: float | None) -> float | None:
    """Seconds: the smaller of the `timeout` parameter (microseconds) and the call's deadline.

    Zero, as Triton's clients send by default, asks for none. None: neither is set.
    """
    wanted = (whole(parameters, "timeout") or 0) / 1e6
    limits = [limit for limit in (wanted or None, remaining) if limit is not None]
    return min(limits, default=None)
