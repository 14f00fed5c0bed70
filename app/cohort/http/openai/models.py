"""`/v1/models`: the models that OpenAI's routes can call."""

from __future__ import annotations

from time import time
from typing import Any

from cohort.operating import ModelReader

STARTED = int(time())

Object = dict[str, Any]


def list_models(reader: ModelReader) -> Object:
    """Return the models that the caller may see, in OpenAI's form."""
    return {"object": "list", "data": [model_object(name) for name in reader.text_models()]}


def model_object(name: str) -> Object:
    """Return a model in OpenAI's form."""
    return {"id": name, "object": "model", "created": STARTED, "owned_by": "cohort"}
