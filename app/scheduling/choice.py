"""The decision which run starts next, and on which slot."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

EXPRESS_RATIO = 4.0
"""How many times shorter than every run in flight a run on the express slot must be."""


class QueueHead(NamedTuple):
    """The next run of one batcher.

    place: When its first request counts as having arrived, on the monotonic clock.
    seconds: Its expected duration; infinite where it cannot be estimated.
    device: The device it runs on, such as "cpu" or "cuda:0".
    shadow: Whether it may run only while no other run waits for the device; default False.
    """

    place: float
    seconds: float
    device: str
    shadow: bool


@dataclass(frozen=True, slots=True)
class Slots:
    """The slots of a device.

    free: The number of free ordinary slots.
    express: Whether the express slot is free.
    running: The expected durations of the runs in flight, in seconds; default none.
    """

    free: int
    express: bool
    running: Collection[float] = ()


class Choice(NamedTuple):
    """The run to start: the position of its queue head, and whether on the express slot."""

    head: int
    express: bool


def next_run(heads: Sequence[QueueHead], slots: Mapping[str, Slots]) -> Choice | None:
    """Choose the head that runs next; None where none may.

    Ordinary slots go to the oldest head. Shadow heads come last, and only while no other head waits
    for the device. Where no ordinary slot is free, the oldest head that is short enough takes the
    express slot. `slots` are by device.
    """
    ordered = sorted(range(len(heads)), key=lambda i: (heads[i].shadow, heads[i].place))
    for index in ordered:
        if slots[heads[index].device].free > 0:
            return Choice(index, express=False)
    for index in ordered:
        head = heads[index]
        on = slots[head.device]
        if not head.shadow and on.express and _is_short(head.seconds, on.running):
            return Choice(index, express=True)
    return None


def _is_short(seconds: float, running: Collection[float]) -> bool:
    return seconds < float("inf") and all(seconds * EXPRESS_RATIO <= other for other in running)
