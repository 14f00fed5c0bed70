"""The interface for operators: health, models, statistics, load and unload, rollouts, metrics."""

from app.control_plane.description import (
    Description,
    ServedModel,
    describe_exactness,
    describe_profile,
    describe_rows,
)
from app.control_plane.drawings import NOT_ON_DISK
from app.control_plane.health import ProcessHealth
from app.control_plane.live import LIVE_BOUNDS, LiveSample, LiveView
from app.control_plane.plane import ControlPlane
from app.control_plane.reading import ModelReader, Readiness
from app.control_plane.shared_work import Shared, at_once, in_turns
from app.control_plane.siblings import Siblings

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
