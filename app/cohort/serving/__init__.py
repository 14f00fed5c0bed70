"""The interface for inference: a lease on a version, and a response from it.

Every API gives an `Exchange` what was sent, who sent it, and where the answer goes; the exchange
takes the same steps for all. A lease tells of its request exactly once, when it is closed, with the
error that the caller got. Small requests read in one event-loop iteration go through the
`coalescer` instead. Adapters see plain specs and arrays; the engine is hidden.
"""

from cohort.batching import Outputs, Reply
from cohort.rollouts import Sticky
from cohort.serving.groups import Group, Intake, QueuedRun
from cohort.serving.lease import Lease
from cohort.serving.limit import ConcurrencyLimit
from cohort.serving.plane import DataPlane
from cohort.serving.request import AwaitedReply, Call, Exchange
from cohort.serving.request_context import Headers, RequestContext
from cohort.serving.served import ServedVersion
from cohort.serving.work import WorkElsewhere

__all__ = [
    "AwaitedReply",
    "Call",
    "ConcurrencyLimit",
    "DataPlane",
    "Exchange",
    "Group",
    "Headers",
    "Intake",
    "Lease",
    "Outputs",
    "QueuedRun",
    "Reply",
    "RequestContext",
    "ServedVersion",
    "Sticky",
    "WorkElsewhere",
]
