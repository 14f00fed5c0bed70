"""Detection of bodies sent to the route of another protocol."""

from __future__ import annotations

from collections.abc import Mapping

from cohort.codec.long_json import LISTS

SIMPLE, V1, V2, MLFLOW, CHAT, COMPLETIONS = (
    "/models/{model}/predict",
    "/v1/models/{model}:predict",
    "/v2/models/{model}/infer",
    "/invocations",
    "/v1/chat/completions",
    "/v1/completions",
)


def other_form(document: Mapping[str, object], here: str) -> str:
    """Name the route that accepts a body unchanged, as the end of a sentence; "" if no route does.

    here: The route to which the body was sent.
    """
    route, whose = _form(document)
    return f"; POST {route} takes {whose} form" if route and route != here else ""


def _form(document: Mapping[str, object]) -> tuple[str, str]:
    inputs = document.get("inputs")
    if any(key.startswith("dataframe_") for key in document):
        return MLFLOW, "MLflow's"
    if "instances" in document or "signature_name" in document:
        return V1, "TensorFlow Serving's"
    if "messages" in document or "prompt" in document:
        return CHAT if "messages" in document else COMPLETIONS, "OpenAI's"
    if names_tensors(inputs):
        return V2, "the Open Inference"
    if isinstance(inputs, dict) or "input" in document:
        return SIMPLE, "this"
    return "", ""


def names_tensors(inputs: object) -> bool:
    """Return True if `inputs` have the Open Inference Protocol's form: objects with names."""
    first = inputs[0] if isinstance(inputs, LISTS) and inputs != [] else None
    return isinstance(first, dict) and "name" in first
