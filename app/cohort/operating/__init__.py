"""The interface for operators: health, models, statistics, load and unload, rollouts, metrics."""

from cohort.operating.description import (
    Description,
    ServedModel,
    describe_exactness,
    describe_profile,
    describe_rows,
    describe_text,
)
from cohort.operating.drawings import NOT_ON_DISK
from cohort.operating.health import ProcessHealth
from cohort.operating.live import LIVE_BOUNDS, LiveSample, LiveView
from cohort.operating.multi_model import Hosted, MultiModel, begin_empty
from cohort.operating.plane import ControlPlane
from cohort.operating.process_plane import ProcessPlane
from cohort.operating.readiness import Lifecycle, Readiness
from cohort.operating.reading import ModelReader
from cohort.operating.shared_work import Shared, at_once, in_turns

__all__ = [
    "LIVE_BOUNDS",
    "NOT_ON_DISK",
    "ControlPlane",
    "Description",
    "Hosted",
    "Lifecycle",
    "LiveSample",
    "LiveView",
    "ModelReader",
    "MultiModel",
    "ProcessHealth",
    "ProcessPlane",
    "Readiness",
    "ServedModel",
    "Shared",
    "at_once",
    "begin_empty",
    "describe_exactness",
    "describe_profile",
    "describe_rows",
    "describe_text",
    "in_turns",
]
