"""The interface for operators: health, models, statistics, load and unload, rollouts, metrics."""

from app.control_plane.description import Description, ServedModel, describe_profile
from app.control_plane.plane import ControlPlane
from app.control_plane.reading import ModelReader, Readiness

__all__ = [
    "ControlPlane",
    "Description",
    "ModelReader",
    "Readiness",
    "ServedModel",
    "describe_profile",
]
