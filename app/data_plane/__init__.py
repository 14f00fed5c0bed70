"""What a caller can ask for: a lease on a model, and an answer from it.

Every face goes one way: `pick` a lease, decode with its `inputs`, `submit`, encode in `reply`,
`close`. A lease counts its request exactly once, when it is closed, with the code the caller saw.
"""

from app.batching import Outputs
from app.data_plane.lease import TURN_SECONDS, Lease, Reply, Served, SharedLease
from app.data_plane.plane import DataPlane, KeyOf
from app.rollout import Sticky

__all__ = [
    "TURN_SECONDS",
    "DataPlane",
    "KeyOf",
    "Lease",
    "Outputs",
    "Reply",
    "Served",
    "SharedLease",
    "Sticky",
]
