"""Inputs and outputs by config: pictures, sound and text go in, and labels come out.

A `Step` makes inputs of the model of one input that callers send. A `Processing` has the steps of
one version, and what becomes of its outputs. `ProcessedEngines` wraps a factory of engines: those
whose config asks for it answer what callers send, on threads where that takes long.
"""

from cohort.processing.around import Around, Watch
from cohort.processing.engine import ProcessedEngine
from cohort.processing.factory import (
    AskedOf,
    ProcessedEngines,
    asked_by_config,
    open_around,
    processed,
    with_trial,
)
from cohort.processing.processing import Asked, Processing, make_processing
from cohort.processing.steps import Step
from cohort.processing.workroom import Workroom

__all__ = [
    "Around",
    "Asked",
    "AskedOf",
    "ProcessedEngine",
    "ProcessedEngines",
    "Processing",
    "Step",
    "Watch",
    "Workroom",
    "asked_by_config",
    "make_processing",
    "open_around",
    "processed",
    "with_trial",
]
