"""Which requests run together.

A batcher belongs to one loaded version. Requests wait in one queue per shape key (all dimensions
but axis 0), the oldest head is served first, and whoever has a free slot (`app.scheduling`) cuts the
next batch. There are no locks: everything here but `Batch.execute` happens on the event loop, and
`execute` touches its own batch only. There is no window either: while one batch runs the next one
gathers, which costs nobody a wait.

Every request is answered exactly once, or not at all if its caller left.
"""

from app.batching.batch import Batch, Control, Outputs, Reply, Run, Ticket, split
from app.batching.batcher import Batcher
from app.batching.events import BatchingOff, Left, Observer, Ran
from app.batching.policy import BatchPolicy, Cut, Key, Padding, Waiting, next_batch

__all__ = [
    "Batch",
    "BatchPolicy",
    "Batcher",
    "BatchingOff",
    "Control",
    "Cut",
    "Key",
    "Left",
    "Observer",
    "Outputs",
    "Padding",
    "Ran",
    "Reply",
    "Run",
    "Ticket",
    "Waiting",
    "next_batch",
    "split",
]
