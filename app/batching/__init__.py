"""Which requests run together.

A batcher belongs to one loaded version. Requests wait in one queue per shape key (names, datatypes
and all dimensions but axis 0; padded ones count by their bucket), the oldest head is served first,
and whoever has a free slot (`app.scheduling`) cuts the next batch. There are no locks: everything
here but `Batch.execute` happens on the event loop, and `execute` touches its own batch only. There
is no window either: while one batch runs the next one gathers, which costs nobody a wait.

Every request is answered exactly once, or not at all if its caller left.
"""

from app.batching.batch import Batch, Reply, Run, RunControl, Ticket
from app.batching.batcher import Batcher
from app.batching.events import BatchingOff, BatchObserver, Left, Ran
from app.batching.padding import PadPlan, plan_padding
from app.batching.policy import (
    BatchDecision,
    BatchPolicy,
    Key,
    Padding,
    QueuedRequest,
    RowCost,
    next_batch,
)
from app.batching.stacking import Outputs, RowsDoNotFollow, split

__all__ = [
    "Batch",
    "BatchDecision",
    "BatchObserver",
    "BatchPolicy",
    "Batcher",
    "BatchingOff",
    "Key",
    "Left",
    "Outputs",
    "PadPlan",
    "Padding",
    "QueuedRequest",
    "Ran",
    "Reply",
    "RowCost",
    "RowsDoNotFollow",
    "Run",
    "RunControl",
    "Ticket",
    "next_batch",
    "plan_padding",
    "split",
]
