"""The interface for inference: a lease on a version, and a response from it.

Every API passes an `Exchange` the request, its context and a reply object. The exchange takes the
same steps for every API. A lease reports the outcome of its request once, when it is closed, with
the error that the caller received. Small requests read in one event-loop iteration go through the
`coalescer` instead. Adapters use plain specs and arrays; the engine is hidden.
"""

from cohort.batching import Outputs, Reply
from cohort.rollouts import Sticky
from cohort.serving.generating import Generation, TextCall
from cohort.serving.groups import Group, Intake, QueuedRun
from cohort.serving.lease import Lease
from cohort.serving.limit import ConcurrencyLimit
from cohort.serving.plane import DataPlane
from cohort.serving.prompts import prompts_of
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
    "Generation",
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
    "TextCall",
    "WorkElsewhere",
    "prompts_of",
]
