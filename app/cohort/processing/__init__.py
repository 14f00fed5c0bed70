"""Preprocessing and postprocessing by config: pictures, sound and text in, labels out.

A `Step` converts one input that callers send to inputs of the model. A `Processing` has the steps
of one version and the functions for its outputs. `ProcessedEngines` wraps a factory of engines and
adds the processing that a config requests. Long work runs on threads.
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
