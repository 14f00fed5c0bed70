"""The interface for inference: a lease on a version, and a response from it.

Every API takes the same steps: `pick` a lease, decode with its `inputs`, `submit`, encode in
`reply`, `close`. A lease counts its request exactly once, when it is closed, with the code that the
caller received. Small requests read in one event-loop iteration go through the `coalescer` instead.
Adapters see plain specs and arrays; the engine is hidden.
"""

from app.batching import Outputs, Reply
from app.data_plane.coalescing import Group, SmallRequest
from app.data_plane.lease import Lease
from app.data_plane.limit import ConcurrencyLimit
from app.data_plane.memory import SMALL_BYTES, MemoryBudget, MemoryHold, count_bytes
from app.data_plane.plane import DataPlane, KeyOf
from app.data_plane.served import ServedVersion
from app.data_plane.sticky import sticky_key
from app.rollouts import Sticky

__all__ = [
    "SMALL_BYTES",
    "ConcurrencyLimit",
    "DataPlane",
    "Group",
    "KeyOf",
    "Lease",
    "MemoryBudget",
    "MemoryHold",
    "Outputs",
    "Reply",
    "ServedVersion",
    "SmallRequest",
    "Sticky",
    "count_bytes",
    "sticky_key",
]
