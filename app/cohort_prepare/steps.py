"""What was done to a model, written into the model itself, so that no file beside it gets lost.

A list of records in JSON, in the metadata of the ONNX file under `cohort.steps`; each command that
makes a model of another appends one. Nothing in it depends on the time or the machine, so that the
same steps on the same model give the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Annotated

import onnx
from onnx.helper import set_model_props
from pydantic import Field, TypeAdapter, ValidationError

from cohort.repository import StepDifference, StepRecord

__all__ = ["MAX_STEPS", "STEPS", "StepDifference", "StepRecord", "add_step", "read_steps"]

STEPS = "cohort.steps"

MAX_STEPS = 100


@cache
def _steps() -> TypeAdapter[tuple[StepRecord, ...]]:
    return TypeAdapter(Annotated[tuple[StepRecord, ...], Field(max_length=MAX_STEPS)])


def read_steps(model: onnx.ModelProto) -> tuple[StepRecord, ...]:
    """What was done to the model; nothing where it does not say so in words we know."""
    written = {one.key: one.value for one in model.metadata_props}.get(STEPS)
    if written is None:
        return ()
    try:
        return _steps().validate_json(written)
    except ValidationError:
        return ()


def add_step(
    model: onnx.ModelProto, step: StepRecord, *, earlier: Sequence[StepRecord] = ()
) -> None:
    """Append a record to the model's metadata.

    earlier: Those of the model that this one was made of, where the tool that made it dropped them;
        default: those in `model` itself.
    """
    known = {one.key: one.value for one in model.metadata_props}
    steps = (*(earlier or read_steps(model)), step)
    known[STEPS] = _steps().dump_json(steps).decode()
    set_model_props(model, dict(sorted(known.items())))
