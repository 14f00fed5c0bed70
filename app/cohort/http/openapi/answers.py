"""A version's responses to the examples of `cohort.http.openapi.examples`.

They are the results of the run that was made of the example when the version was loaded. The time
in them is made up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import orjson

from cohort.codec import encode_prediction, encode_simple
from cohort.codec.detections import detectors_of
from cohort.codec.labels import chosen, labellers_of
from cohort.codec.naming import naming_of
from cohort.codec.v1 import encode_predictions
from cohort.errors import CohortError
from cohort.http.openapi.examples import (
    are_shortened,
    predict_examples,
    v1_examples,
    v2_examples,
)
from cohort.http.openapi.schemas import MAX_EXAMPLE, listed
from cohort.operating import ServedModel
from cohort.tensors import Array, held_bytes

MAX_ANSWER_BYTES = 16 * 1024

SECONDS = 0.001
"""Run time shown in the examples, in seconds."""

Shown = Mapping[str, Any]


def predict_answers(served: ServedModel) -> Shown:
    """Return responses of the simple API by the names of their request bodies."""
    write = partial(
        encode_prediction,
        model=served.model,
        version=served.version,
        variant=None,
        id=None,
        inference_time=SECONDS,
    )
    simple = partial(encode_simple, **write.keywords)
    forms: dict[str, Callable[..., bytes]] = {"by name": write, "as tutorials write it": simple}
    return _written(served, predict_examples(served), forms)


def v1_answers(served: ServedModel) -> Shown:
    """Return responses of TensorFlow Serving's API by the names of their request bodies."""
    by_row = partial(encode_predictions, rows=True)
    by_column = partial(encode_predictions, rows=False, key="outputs")
    return _written(served, v1_examples(served), {"by row": by_row, "by column": by_column})


def v2_answers(served: ServedModel) -> Shown:
    """Return a response of the Open Inference Protocol."""
    outputs = _outputs(served)
    if outputs is None or not v2_examples(served):
        return {}
    places = {spec.name: place for place, spec in enumerate(served.outputs)}
    named = chosen(labellers_of(served.outputs, served.labels), [*places.values()], 0)
    tensors = [
        (name, served.outputs[places[name]].datatype, array) for name, array in outputs.items()
    ]
    try:
        tensors += [(one.output, "BYTES", one.names(outputs[one.spec.name], 0)) for _, one in named]
        flat = listed({name: array.reshape(-1) for name, _, array in tensors})
    except CohortError:
        return {}
    shown = [
        {"name": name, "datatype": datatype, "shape": list(array.shape), "data": flat[name]}
        for name, datatype, array in tensors
    ]
    about = {"model_name": served.model, "model_version": served.version}
    return {"in JSON": {**about, "outputs": shown}}


def _written(
    served: ServedModel, bodies: Shown, forms: Mapping[str, Callable[..., bytes]]
) -> Shown:
    outputs = _outputs(served)
    if outputs is None:
        return {}
    answer = served.answer or ()
    places = [place for place, spec in enumerate(served.outputs) if spec.transportable]
    shown: dict[str, Any] = {}
    for name, write in forms.items():
        if name not in bodies:
            continue
        try:
            labellers = labellers_of(served.outputs, served.labels)
            naming = naming_of(labellers, detectors_of(served.outputs), places, 0)
            named = naming.write(answer, lambda: None)
            shown[name] = orjson.loads(write(outputs=outputs, named=named))
        except CohortError:  # NaN or no rows: the server refuses such a request
            continue
    return shown


def _outputs(served: ServedModel) -> dict[str, Array] | None:
    """Return the transportable outputs by name, or None if they are unknown or long."""
    answer = served.answer
    if answer is None or are_shortened(served):
        return None
    outputs = {
        spec.name: array
        for spec, array in zip(served.outputs, answer, strict=True)
        if spec.transportable
    }
    short = sum(one.size for one in outputs.values()) <= MAX_EXAMPLE
    held = sum(map(held_bytes, outputs.values()))
    return outputs if outputs and short and held <= MAX_ANSWER_BYTES else None
