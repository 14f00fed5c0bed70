"""What a caller can ask for: a lease on a version, and an answer from it.

Every API goes one way: `pick` a lease, decode with its `inputs`, `submit`, encode in `reply`,
`close`. A lease counts its request exactly once, when it is closed, with the code the caller saw.
Small requests read in one event-loop iteration go through the `coalescer` instead. Callers see
plain specs and arrays; which engine answers is hidden.
"""

from app.batching import Outputs, Reply
from app.data_plane.coalescing import SmallRequest
from app.data_plane.lease import Lease
from app.data_plane.plane import DataPlane, KeyOf
from app.data_plane.sticky import sticky_key
from app.rollouts import Sticky

__all__ = [
    "DataPlane",
    "KeyOf",
    "Lease",
    "Outputs",
    "Reply",
    "SmallRequest",
    "Sticky",
    "sticky_key",
]
