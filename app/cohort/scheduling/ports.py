"""The scheduler's interface to queues of requests and the runs that they make."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol


class Decision(Protocol):
    """The next run of a queue.

    place: The arrival of its first request, adjusted for priority, in seconds on the monotonic
        clock.
    work: The amount of work, the argument of `RunQueue.seconds_for`.
    """

    @property
    def place(self) -> float: ...

    @property
    def work(self) -> float: ...


class Part(Protocol):
    """A part of a run, and the seconds that it took."""

    @property
    def seconds(self) -> float: ...


class Run(Protocol):
    """A run of a queue's requests.

    exclusive: True if no other run waits or continues when it starts.
    expected: Its expected duration, in seconds; infinite if it cannot be estimated.
    started: When it was taken, in seconds on the monotonic clock.
    unwanted: The time since which no caller waits for it, on the same clock; 0 while one waits.
    device_lost: The driver's message about a permanent failure of the device; "" if it works.
    """

    exclusive: bool
    expected: float
    started: float
    unwanted: float
    device_lost: str

    @property
    def runs(self) -> Sequence[Part]:
        """The parts in which it was executed."""

    @property
    def first_success(self) -> object | None:
        """A request of it that succeeded; None if all failed."""

    def execute(self) -> None:
        """Do the work, on a thread."""


class OnLoop(Protocol):
    """True if runs may execute on the event loop; and the reason if they cannot be estimated."""

    @property
    def allowed(self) -> bool: ...

    @property
    def unpredictable(self) -> str: ...


class RunQueue(Protocol):
    """Requests that wait to be run. All methods are called on the event loop.

    A decision must be the last result of `next_batch` of the same queue.

    name: The model and version, for operators.
    device: The device that runs use, such as "cpu" or "cuda:0".
    shadow: True if these requests run only while no other request waits for the device.
    """

    name: str
    device: str
    shadow: bool

    @property
    def waiting(self) -> int:
        """The number of requests that wait."""

    @property
    def running(self) -> Collection[Run]:
        """The runs that were taken and not finished."""

    @property
    def inline(self) -> OnLoop:
        """Permission to execute runs on the event loop."""

    def seconds_for(self, work: float, /) -> float:
        """Return the expected duration of a run, in seconds."""

    def next_batch(self, now: float) -> Decision | float:
        """Decide the next run, or return the seconds after which to ask again."""

    def cut(self, decision: Any, seconds: float) -> Decision | None:
        """Return a part of it whose run takes at most `seconds`; None if there is no such part."""

    def take(self, decision: Any, now: float) -> Run:
        """Take the requests out of the queue."""

    def execute_inline(self, batch: Any, now: float) -> bool:
        """Execute a run now and finish it; False if a thread must execute it."""

    def finish(self, batch: Any) -> None:
        """Call the replies of a run that was executed on a thread."""
