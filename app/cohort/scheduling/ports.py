"""What the scheduler runs: queues of requests, and the runs that they make of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol


class Decision(Protocol):
    """What a queue would run next.

    place: When its first request counts as having arrived, in seconds on the monotonic clock.
    work: How much there is to do, as `RunQueue.seconds_for` takes it.
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

    exclusive: Whether no other run waits or goes on when it starts.
    expected: How long it should take, in seconds; infinite where it cannot be estimated.
    started: When it was taken, in seconds on the monotonic clock.
    unwanted: Since when nobody waits for it, on the same clock; 0 while somebody does.
    device_lost: What the device's driver said when it failed for good; "" where it works.
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
        """A request of it that succeeded; None where none did."""

    def execute(self) -> None:
        """Do the work, on a thread."""


class OnLoop(Protocol):
    """Whether runs may execute on the event loop; and why it is not known how long they take."""

    @property
    def allowed(self) -> bool: ...

    @property
    def unpredictable(self) -> str: ...


class RunQueue(Protocol):
    """Requests that wait to be run. All is called on the event loop.

    A decision is what `next_batch` returned last; no other queue is given it.

    name: The model and version, for operators.
    device: The device that runs use, such as "cpu" or "cuda:0".
    shadow: Whether these requests run only while no other request waits for the device.
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
        """Whether runs may execute on the event loop."""

    def seconds_for(self, work: float, /) -> float:
        """How long a run should take, in seconds."""

    def next_batch(self, now: float) -> Decision | float:
        """Decide what to run next, or in how many seconds to ask again."""

    def cut(self, decision: Any, seconds: float) -> Decision | None:
        """A part of it whose run takes `seconds` at most; None where there is none."""

    def take(self, decision: Any, now: float) -> Run:
        """Take the requests out of the queue."""

    def execute_inline(self, batch: Any, now: float) -> bool:
        """Execute a run now and finish it; False where a thread must execute it."""

    def finish(self, batch: Any) -> None:
        """Call the replies of a run that was executed on a thread."""
