"""Batching: the choice of requests that run together.

A batcher belongs to one loaded version. Requests wait in one queue per shape key: their names,
datatypes and all dimensions except axis 0; a padded dimension counts as its bucket. The queue with
the oldest head is served first. The scheduler (`cohort.scheduling`) takes the next batch when a
slot is free. There is no batching window by default: while one batch runs, requests queue for the
next.

There are no locks: everything except `Batch.execute` happens on the event loop, and `execute` uses
    only its own batch. A thread watches runs on the event loop (`watchdog`).

The reply of each request is called exactly once, or never if the request is cancelled.
"""

from cohort.batching.aligning import aligned, aligned_runs
from cohort.batching.batch import Batch, Reply, Run, RunControl, Ticket
from cohort.batching.batcher import Batcher
from cohort.batching.events import (
    BatchEvent,
    BatchingDisabled,
    BatchObserver,
    InlineStall,
    LeftLoop,
    Ran,
    RequestCancelled,
    Times,
    call_reply,
    ignore,
)
from cohort.batching.filling import FilledRuns
from cohort.batching.inline import RunResult
from cohort.batching.output_limit import OutputLimit, limit_outputs
from cohort.batching.padding import PadPlan, plan_padding
from cohort.batching.policy import (
    BatchDecision,
    BatchPolicy,
    Key,
    Padding,
    QueuedRequest,
    RowCost,
    count_elements,
    next_batch,
    share_for,
)
from cohort.batching.row_plan import RowPlan, SizePlace
from cohort.batching.samples import Sample, Sampler
from cohort.batching.stacking import (
    FIRST_AXIS,
    Joined,
    Outputs,
    RowsDoNotFollow,
    RunFeeds,
    Stacking,
)
from cohort.batching.watchdog import InlineRun, Watchdog

__all__ = [
    "FIRST_AXIS",
    "Batch",
    "BatchDecision",
    "BatchEvent",
    "BatchObserver",
    "BatchPolicy",
    "Batcher",
    "BatchingDisabled",
    "FilledRuns",
    "InlineRun",
    "InlineStall",
    "Joined",
    "Key",
    "LeftLoop",
    "OutputLimit",
    "Outputs",
    "PadPlan",
    "Padding",
    "QueuedRequest",
    "Ran",
    "Reply",
    "RequestCancelled",
    "RowCost",
    "RowPlan",
    "RowsDoNotFollow",
    "Run",
    "RunControl",
    "RunFeeds",
    "RunResult",
    "Sample",
    "Sampler",
    "SizePlace",
    "Stacking",
    "Ticket",
    "Times",
    "Watchdog",
    "aligned",
    "aligned_runs",
    "call_reply",
    "count_elements",
    "ignore",
    "limit_outputs",
    "next_batch",
    "plan_padding",
    "share_for",
]
