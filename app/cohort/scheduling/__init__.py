"""The scheduler decides which batch runs next, and where.

One scheduler serves all models of a process. A device has slots: the number of concurrent runs (the
cores of a CPU, one or two for a GPU). The next free slot goes to the oldest request of all models;
each step of priority makes a request count as older. Shadow runs start only while no other request
waits.

A run that starts while nothing else runs or waits is exclusive: it may use the other cores too.

Four rules keep a slow model from delaying a fast one (docs/contributing/decisions/0004, 0023):

- Runs of at most `INLINE_SECONDS` execute on the event loop and need no slot: the way to a thread
  and back takes longer. This excludes models whose runs cannot be estimated
  (docs/contributing/decisions/0010).
- Each device has one extra slot, the express slot. It is for a run that is at least
  `EXPRESS_RATIO` times shorter than every run in flight. So a short run does not wait for a long
  one to end. A run counts as at least as long as it has lasted so far. If it overstays on the
  express slot, it occupies an ordinary slot instead.
- On an ordinary slot a run overtakes older ones that take `EXPRESS_RATIO` times as long, within a
  quarter of the time that these take. So a run without the express slot waits for one of them.
- The threads of ordinary slots have a lower priority than the event loop and the express slot, if
  the system allows it. So they yield a core as soon as a short run needs it.
"""

from cohort.scheduling.choice import (
    EXPRESS_RATIO,
    OVERSTAY_SECONDS,
    Choice,
    QueueHead,
    Slots,
    next_run,
    seconds_to_express,
)
from cohort.scheduling.faults import FAULTS, Fault
from cohort.scheduling.ports import RunQueue
from cohort.scheduling.scheduler import INLINE_SECONDS, MAX_READING_SECONDS, Scheduler

__all__ = [
    "EXPRESS_RATIO",
    "FAULTS",
    "INLINE_SECONDS",
    "MAX_READING_SECONDS",
    "OVERSTAY_SECONDS",
    "Choice",
    "Fault",
    "QueueHead",
    "RunQueue",
    "Scheduler",
    "Slots",
    "next_run",
    "seconds_to_express",
]
