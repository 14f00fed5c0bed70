"""The simple face's answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from app.codec.text import encode_tensor
from app.tensors import Array

_NUMPY = orjson.OPT_SERIALIZE_NUMPY


def encode_prediction(
    *,
    model: str,
    version: str,
    variant: str | None,
    id: str | None,  # noqa: A002 - the wire's own word
    outputs: Mapping[str, Array],
    inference_time: float,
) -> bytes:
    """Write the answer to `inputs`; `inference_time` is in seconds.

    Raises InferenceFailed for an output that JSON cannot carry.
    """
    answer: dict[str, Any] = {"model": model, "version": version}
    if variant is not None:
        answer["variant"] = variant
    if id is not None:
        answer["id"] = id
    answer["outputs"] = {name: encode_tensor(name, array) for name, array in outputs.items()}
    answer["inference_time_ms"] = round(inference_time * 1000, 3)
    return orjson.dumps(answer, option=_NUMPY)


def encode_simple(
    *,
    model: str,
    version: str,
    variant: str | None,
    id: str | None,  # noqa: A002
    outputs: Mapping[str, Array],
    inference_time: float,
) -> bytes:
    """Write the answer to `input`: the only output bare, several by name. Raises as above."""
    prediction: Any = {name: encode_tensor(name, array) for name, array in outputs.items()}
    if len(prediction) == 1:
        (prediction,) = prediction.values()
    answer: dict[str, Any] = {
        "prediction": prediction,
        "inference_time_ms": round(inference_time * 1000, 3),
        "model": model,
        "version": version,
    }
    if variant is not None:
        answer["variant"] = variant
    if id is not None:
        answer["id"] = id
    return orjson.dumps(answer, option=_NUMPY)
