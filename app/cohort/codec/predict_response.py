"""The responses of `POST /predict`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import orjson

from cohort.codec.json_outputs import BY_ITSELF, WRITTEN_AT_ONCE, LongParts, encode_parts
from cohort.tensors import Array

_NUMPY = orjson.OPT_SERIALIZE_NUMPY

LARGE_BYTES = 100_000
"""Size above which JSON is handled off the event loop; it takes a millisecond for a megabyte."""


NO_NAMES: Mapping[str, orjson.Fragment] = MappingProxyType({})

ELEMENT_BYTES = 32
"""Cost of converting an element of BYTES, in bytes of JSON, in addition to its own bytes."""


def are_large(outputs: Sequence[Array]) -> bool:
    """Return True if writing `outputs` as JSON is too slow for the event loop."""
    size = 0
    for output in outputs:
        size += output.nbytes
        if output.dtype is _OBJECTS:
            size += _text_work(output)
    return size > LARGE_BYTES


_OBJECTS = np.dtype(np.object_)


def _text_work(texts: Array) -> int:
    elements = texts.size * ELEMENT_BYTES
    if elements > LARGE_BYTES:
        return elements
    return elements + sum([len(one) for one in texts.ravel().tolist() if one is not None])


def encode_prediction(
    *,
    model: str,
    version: str,
    variant: str | None,
    id: str | None,  # noqa: A002 - the name in the protocol
    outputs: Mapping[str, Array],
    named: Mapping[str, orjson.Fragment] = NO_NAMES,
    inference_time: float,
    check: Callable[[], None] = lambda: None,
) -> bytes:
    """Write the response to a request with `inputs`.

    model, version: The names of the version that answered.
    variant: The rollout's variant that answered; None without a rollout.
    id: The id of the request; None if it did not have one.
    outputs: The arrays by name.
    named: Additional keys and their values; default: no keys.
    inference_time: The time in seconds, from arrival to response.
    check: Called for each part of a long response; an error that it raises ends the writing.

    Raises InferenceFailed for an output that JSON cannot carry.
    """
    response: dict[str, Any] = {"model": model, "version": version}
    if variant is not None:
        response["variant"] = variant
    if id is not None:
        response["id"] = id
    response["outputs"] = outputs
    response |= named
    response["inference_time_ms"] = int(inference_time * 1e6) / 1000
    return _dump(response, "outputs", outputs, check)


def encode_simple(
    *,
    model: str,
    version: str,
    variant: str | None,
    id: str | None,  # noqa: A002
    outputs: Mapping[str, Array],
    named: Mapping[str, orjson.Fragment] = NO_NAMES,
    inference_time: float,
    check: Callable[[], None] = lambda: None,
) -> bytes:
    """Write the response to a request with `input`: a single output, without its name.

    Several outputs are written by name. Parameters and errors as for `encode_prediction`.
    """
    response: dict[str, Any] = {"prediction": outputs}
    response |= named
    response["inference_time_ms"] = int(inference_time * 1e6) / 1000
    response |= {"model": model, "version": version}
    if variant is not None:
        response["variant"] = variant
    if id is not None:
        response["id"] = id
    return _dump(response, "prediction", outputs, check, unnamed=len(outputs) == 1)


def _dump(
    response: dict[str, Any],
    place: str,
    outputs: Mapping[str, Array],
    check: Callable[[], None],
    *,
    unnamed: bool = False,
) -> bytes:
    """Write `response` as JSON, with `outputs` under the key `place`.

    unnamed: True to write the only output without its name.
    """
    for array in outputs.values():
        if array.dtype not in BY_ITSELF or array.nbytes > WRITTEN_AT_ONCE:
            break
    else:
        if unnamed:
            (response[place],) = outputs.values()
        try:
            body = orjson.dumps(response, option=_NUMPY)
        except orjson.JSONEncodeError:  # no rows, or not contiguous
            pass
        else:
            if b"null" not in body:  # NaN becomes null; searching for null is cheaper than for NaN
                return body
    parts = LongParts(check)
    values: Any = {name: parts.put(encode_parts(name, array)) for name, array in outputs.items()}
    if unnamed:
        (values,) = values.values()
    response[place] = values
    return parts.dump(response)
