"""What an operator can ask for: health, what is loaded and how it fares, metrics."""

from app.control_plane.describing import Description, Served, describe_finding
from app.control_plane.plane import ControlPlane, Readiness

__all__ = ["ControlPlane", "Description", "Readiness", "Served", "describe_finding"]
