"""The interface for inference: a lease on a version, and a response from it.

Every API gives an `Exchange` what was sent, who sent it, and where the answer goes; the exchange
takes the same steps for all. A lease tells of its request exactly once, when it is closed, with the
error that the caller got. Small requests read in one event-loop iteration go through the
`coalescer` instead. Adapters see plain specs and arrays; the engine is hidden.
"""

from app.batching import Outputs, Reply
from app.data_plane.context import Headers, RequestContext
from app.data_plane.groups import Group, SmallRequest
from app.data_plane.lease import Lease
from app.data_plane.limit import ConcurrencyLimit
from app.data_plane.memory import SMALL_BYTES, MemoryBudget, MemoryHold, count_bytes
from app.data_plane.plane import DataPlane
from app.data_plane.request import AwaitedReply, Call, Exchange
from app.data_plane.served import ServedVersion
from app.data_plane.work import WorkElsewhere
from app.rollouts import Sticky

__all__ = [
    "SMALL_BYTES",
    "AwaitedReply",
    "Call",
    "ConcurrencyLimit",
    "DataPlane",
    "Exchange",
    "Group",
    "Headers",
    "Lease",
    "MemoryBudget",
    "MemoryHold",
    "Outputs",
    "Reply",
    "RequestContext",
    "ServedVersion",
    "SmallRequest",
    "Sticky",
    "WorkElsewhere",
    "count_bytes",
]
