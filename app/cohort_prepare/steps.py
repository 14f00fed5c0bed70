"""Records of the steps applied to a model, stored in the model, so that they cannot get lost.

`cohort.steps` in the ONNX metadata is a JSON list; each command that makes a new model appends a
record. Records do not depend on the time or machine, so the same steps give the same bytes.
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
    """Return the model's records; nothing if they are missing or unreadable."""
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

    earlier: Records of the source model, if the tool that made this one dropped them; default: the
        records in `model`.
    """
    known = {one.key: one.value for one in model.metadata_props}
    steps = (*(earlier or read_steps(model)), step)
    known[STEPS] = _steps().dump_json(steps).decode()
    set_model_props(model, dict(sorted(known.items())))
