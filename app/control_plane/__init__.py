"""The interface for operators: health, models, statistics, load and unload, rollouts, metrics."""

from app.control_plane.description import Description, ServedModel, describe_profile
from app.control_plane.plane import ControlPlane, Readiness

__all__ = ["ControlPlane", "Description", "Readiness", "ServedModel", "describe_profile"]
