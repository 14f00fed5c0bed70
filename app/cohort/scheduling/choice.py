"""The decision which run starts next, and on which slot."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

EXPRESS_RATIO = 4.0
"""A run on the express slot must be this many times shorter than every run in flight."""

OVERSTAY_SECONDS = 0.01
"""Time that every run may have the express slot, regardless of its estimate."""


class QueueHead(NamedTuple):
    """The next run of one batcher.

    place: The arrival of its first request, adjusted for priority, on the monotonic clock.
    seconds: Its expected duration; infinite if it cannot be estimated.
    device: The device it runs on, such as "cpu" or "cuda:0".
    shadow: True if it may run only while no other run waits for the device; default False.
    likely: The recent duration of similar runs, even if it is not a reliable estimate; default
        infinite.
    """

    place: float
    seconds: float
    device: str
    shadow: bool
    likely: float = float("inf")


@dataclass(frozen=True, slots=True)
class Slots:
    """The slots of a device.

    free: The number of free ordinary slots.
    express: True if the express slot is free.
    running: The durations of the runs in flight, in seconds: as expected, or so far if that is
        more; default: empty.
    credit: The seconds that runs which overtake longer ones may take; default 0.
    """

    free: int
    express: bool
    running: Collection[float] = ()
    credit: float = 0.0


class Choice(NamedTuple):
    """The run to start: the position of its queue head, and True for the express slot.

    overtakes: True if a longer run of an older request has to wait for it; default False.
    """

    head: int
    express: bool
    overtakes: bool = False


def next_run(heads: Sequence[QueueHead], slots: Mapping[str, Slots]) -> Choice | None:
    """Choose the head that runs next; None if no head may run.

    Ordinary slots go to the oldest head; a much shorter one overtakes it while the device has
    credit for that. Shadow heads come last, and only while no other head waits for the device. If
    no ordinary slot is free, the oldest head that is short enough takes the express slot. `slots`
    are by device.
    """
    ordered = sorted(range(len(heads)), key=lambda i: (heads[i].shadow, heads[i].place))
    for index in ordered:
        oldest = heads[index]
        on = slots[oldest.device]
        if on.free > 0:
            longest = min(oldest.likely / EXPRESS_RATIO, on.credit)
            for other in ordered:
                head = heads[other]
                if head.device == oldest.device and not head.shadow and head.likely <= longest:
                    return Choice(other, express=False, overtakes=other != index)
            return Choice(index, express=False)
    for index in ordered:
        head = heads[index]
        on = slots[head.device]
        if not head.shadow and on.express and _is_short(head.seconds, on.running):
            return Choice(index, express=True)
    return None


def _is_short(seconds: float, running: Collection[float]) -> bool:
    return seconds < float("inf") and all(seconds * EXPRESS_RATIO <= other for other in running)


def seconds_to_express(heads: Sequence[QueueHead], slots: Mapping[str, Slots]) -> float:
    """Return seconds until a head may take the express slot while runs continue; or infinite.

    Every run in flight counts as at least as long as it has lasted so far.
    """
    wait = float("inf")
    for head in heads:
        on = slots[head.device]
        if on.express and not head.shadow and head.seconds < float("inf"):
            wait = min(wait, head.seconds * EXPRESS_RATIO - min(on.running, default=0.0))
    return wait
