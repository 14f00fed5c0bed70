"""Requests to a language model that come as tensors: a text, and parameters for sampling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cohort.errors import InvalidInput, quoted
from cohort.generation import GenerationRequest, Sampling

MAX_STOPS = 16
MAX_STOP_LENGTH = 1024

NUMBERS = (
    *("temperature", "top_p", "min_p", "repetition_penalty"),
    *("presence_penalty", "frequency_penalty"),
)
WHOLE = ("top_k", "seed")


def read_parameters(
    prompt: str, parameters: Mapping[str, object], defaults: Sampling
) -> GenerationRequest:
    """Return the request for a prompt; unknown parameters are ignored. Raises InvalidInput."""
    changes: dict[str, Any] = {}
    for name in (*NUMBERS, *WHOLE):
        if name in parameters:
            changes[name] = _number(name, parameters[name], whole=name in WHOLE)
    most = None
    for name in ("max_tokens", "max_new_tokens"):
        if name in parameters:
            most = int(_number(name, parameters[name], whole=True))
    return GenerationRequest(
        prompt, most, replace(defaults, **changes), _stops(parameters.get("stop"))
    )


def _number(name: str, value: object, *, whole: bool) -> float:
    allowed = int if whole else int | float
    if not isinstance(value, allowed) or isinstance(value, bool):
        kind = "a whole number" if whole else "a number"
        raise InvalidInput(f"parameter {quoted(name)} must be {kind}", name)
    return value


def _stops(value: object) -> tuple[str, ...]:
    stops = [] if value is None else [value] if isinstance(value, str) else value
    valid = (
        isinstance(stops, list | tuple)
        and len(stops) <= MAX_STOPS
        and all(isinstance(one, str) and 0 < len(one) <= MAX_STOP_LENGTH for one in stops)
    )
    if not valid:
        raise InvalidInput(
            f"parameter 'stop' must be at most {MAX_STOPS} texts of at most {MAX_STOP_LENGTH} "
            "characters",
            "stop",
        )
    return tuple(stops)  # type: ignore[arg-type]
