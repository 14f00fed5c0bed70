"""The slots of a device, the runs in flight on them, and the threads of these."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue

from cohort.scheduling.choice import EXPRESS_RATIO, OVERSTAY_SECONDS, Slots
from cohort.scheduling.faults import Fault
from cohort.scheduling.ports import Run
from cohort.session import lower_priority


class Device:
    """The slots of one device, the runs that occupy them, and their threads.

    lost: The driver's message about a permanent failure; "" if it works.

    name: Such as "cpu" or "cuda:0".
    slots: The number of ordinary slots.
    on_executed: Called on a run's thread, with a batch that was executed.
    """

    def __init__(self, name: str, slots: int, on_executed: Callable[[Run], None]) -> None:
        self.name = name
        self.slots = slots
        self.lost = ""
        self.running: dict[Run, bool] = {}  # True if it started on the express slot
        self._credit = 0.0  # seconds left for runs that overtake longer ones
        self._overtaking: dict[Run, float] = {}  # their expected seconds
        # One more than slots: a run that overstays on the express thread also occupies a slot.
        self.ordinary = RunThreads(slots + 1, on_executed, low_priority=True)
        self.express = RunThreads(1, on_executed, low_priority=False)

    def free_slots(self, now: float) -> Slots:
        """Return its slots at `now`, in seconds on the monotonic clock.

        A run that has the express slot for too long occupies an ordinary slot instead. The next
        long run waits for that slot, and short runs do not.
        """
        express = sum([short and not _overstays(one, now) for one, short in self.running.items()])
        lasting = [max(one.expected, now - one.started) for one in self.running]
        in_flight = len(self.running)
        return Slots(
            self.slots - in_flight + express,
            not express and in_flight <= self.slots,
            lasting,
            self._credit,
        )

    def start(
        self, batch: Run, *, likely: float, express: bool = False, overtakes: bool = False
    ) -> None:
        """Start a batch; on a low-priority thread if a long run has the express thread.

        Runs that overtake older ones may take a quarter of the time of those that do not. `likely`
        is the likely duration, in seconds.
        """
        if overtakes:
            self._credit -= likely
            self._overtaking[batch] = likely
        elif not express:
            share = likely / EXPRESS_RATIO
            self._credit = max(self._credit, min(self._credit + share, share))
        threads = self.express if express and not any(self.running.values()) else self.ordinary
        self.running[batch] = express
        threads.put(batch)

    def end(self, batch: Run) -> None:
        """Free the slot of a batch that was executed."""
        del self.running[batch]
        if batch in self._overtaking:  # add the difference from the expected time
            self._credit += self._overtaking.pop(batch) - sum([ran.seconds for ran in batch.runs])
        if batch.device_lost:
            self.lost = batch.device_lost
        elif self.lost and batch.first_success is not None:
            self.lost = ""

    def faults(
        self, now: float, *, patience: float, names: Callable[[Run], str]
    ) -> Iterator[Fault]:
        """Yield the faults at `now`, in seconds on the monotonic clock.

        patience: Seconds that an unwanted run may continue after it was asked to stop.
        names: Returns the model of a batch.
        """
        if self.lost:
            yield Fault("device_lost", f"{self.name} failed: {self.lost}", lasting=True)
        if not (self.ordinary.start() and self.express.start()):
            yield Fault("thread_missing", f"the system has no thread for runs on {self.name}")
        stuck = [one for one in self.running if one.unwanted and now - one.unwanted > patience]
        # A stuck run is its model's fault; if all slots are taken, the device is blocked.
        lasting = sum(not self.running[one] for one in stuck) >= self.slots
        for batch in stuck:
            seconds = now - batch.unwanted
            text = f"a run on {self.name} has not stopped, {seconds:.0f} s after its last caller"
            yield Fault("run_stuck", text, names(batch), lasting)

    def close(self) -> None:
        self.ordinary.close()
        self.express.close()


def _overstays(batch: Run, now: float) -> bool:
    return now - batch.started > max(EXPRESS_RATIO * batch.expected, OVERSTAY_SECONDS)


class RunThreads:
    """Threads that execute batches, started when first needed, at most `limit` of them."""

    def __init__(
        self, limit: int, on_executed: Callable[[Run], None], *, low_priority: bool
    ) -> None:
        self._limit = limit
        self._low_priority = low_priority
        self._on_executed = on_executed
        self._queue: SimpleQueue[Run | None] = SimpleQueue()
        self._wanted = 0
        self._count = 0

    def put(self, batch: Run) -> None:
        self._queue.put(batch)
        if self._wanted < self._limit:
            self._wanted += 1
            self.start()

    def start(self) -> bool:
        """Start missing threads. False if the system has no thread: try again later."""
        try:
            while self._count < self._wanted:
                threading.Thread(target=self._work, name="cohort-run", daemon=True).start()
                self._count += 1
        except RuntimeError:
            return False
        return True

    def close(self) -> None:
        self._wanted = 0
        for _ in range(self._count):
            self._queue.put(None)

    def _work(self) -> None:
        if self._low_priority:
            lower_priority()
        while (batch := self._queue.get()) is not None:
            batch.execute()
            self._on_executed(batch)
            del batch  # otherwise its arrays stay in memory until the next batch
