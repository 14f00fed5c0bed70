"""What a caller can ask for: a lease on a model, and an answer from it.

Every face goes one way: `pick` a lease, decode with its `inputs`, `submit`, encode in `reply`,
`close`. A lease counts its request exactly once, when it is closed, with the code the caller saw.
"""

from app.batching import Outputs
from app.data_plane.lease import COALESCED_RUN_SECONDS, Lease, Reply, Served, SharedLease
from app.data_plane.plane import DataPlane, KeyOf
from app.rollouts import Sticky

__all__ = [
    "COALESCED_RUN_SECONDS",
    "DataPlane",
    "KeyOf",
    "Lease",
    "Outputs",
    "Reply",
    "Served",
    "SharedLease",
    "Sticky",
]
