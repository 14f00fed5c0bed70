"""What an operator can ask for: health, what is loaded and how it fares, metrics."""

from app.control_plane.description import Description, ServedModel, describe_profile
from app.control_plane.plane import ControlPlane, Readiness

__all__ = ["ControlPlane", "Description", "Readiness", "ServedModel", "describe_profile"]
