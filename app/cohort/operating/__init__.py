"""The interface for operators: health, models, statistics, load and unload, rollouts, metrics."""

from cohort.operating.description import (
    Description,
    ServedModel,
    describe_exactness,
    describe_profile,
    describe_rows,
)
from cohort.operating.drawings import NOT_ON_DISK
from cohort.operating.health import ProcessHealth
from cohort.operating.live import LIVE_BOUNDS, LiveSample, LiveView
from cohort.operating.plane import ControlPlane
from cohort.operating.reading import ModelReader, Readiness
from cohort.operating.shared_work import Shared, at_once, in_turns
from cohort.operating.siblings import Siblings

__all__ = [
    "LIVE_BOUNDS",
    "NOT_ON_DISK",
    "ControlPlane",
    "Description",
    "LiveSample",
    "LiveView",
    "ModelReader",
    "ProcessHealth",
    "Readiness",
    "ServedModel",
    "Shared",
    "Siblings",
    "at_once",
    "describe_exactness",
    "describe_profile",
    "describe_rows",
    "in_turns",
]
