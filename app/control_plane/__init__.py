"""What an operator can ask for: health, what is loaded and how it fares, metrics."""

from app.control_plane.description import Description, Served, describe_profile
from app.control_plane.plane import ControlPlane, Readiness

__all__ = ["ControlPlane", "Description", "Readiness", "Served", "describe_profile"]
