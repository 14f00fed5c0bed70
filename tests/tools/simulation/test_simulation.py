"""Lives of a server from seeds: what must hold does, and what is broken on purpose is found."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

import numpy as np
import pytest

from cohort import scheduling
from cohort.batching import Batch, BatchDecision, Batcher, BatchObserver, BatchPolicy, ignore
from cohort.errors import Cancelled
from cohort.http.fast_path.cycle import HotCycle
from cohort.http.fast_path.protocol import HotProtocol
from cohort.registry import Registry, loading, registry
from cohort.registry.actions import Load, Unload
from cohort.registry.engine import LeaseCount
from cohort.registry.loading import LoadThreads
from cohort.scheduling import Scheduler
from cohort.serving import Lease
from cohort.serving.coalescing import Coalescer
from cohort.session import CancellationToken
from tools.simulation.order import Order
from tools.simulation.world import World


@pytest.mark.parametrize("first", [0, 50])
def test_what_must_hold_does(first: int) -> None:
    """Each request gets one answer, the right one, in the order that was promised; nothing is left.

    `python -m tools.simulation --seed N` replays a seed that fails. CI runs 500 seeds by
    `make simulate`, which runs 2,000 or more by hand.
    """
    for seed in range(first, first + 50):
        try:
            World(seed).run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_a_seed_gives_the_same_life_each_time() -> None:
    """A failure can be reproduced."""
    for seed in range(5):
        lives: list[list[str]] = [[], []]
        for life in lives:
            World(seed, trace=life.append).run()
        assert lives[0] == lives[1]
        assert len(lives[0]) > 2


def test_copies_do_not_change_the_order_of_what_they_are_copies_of() -> None:
    """A batch may run while copies of its requests wait for a shadow, in a separate order."""
    found: list[str] = []
    order = Order(found.append)
    order.priorities.update({1: 0, 2: 1})

    def queue(batcher: Batcher, *requests: tuple[int, int]) -> None:
        for one, priority in requests:
            x = np.full((1, 2), one, np.float32)
            ticket = batcher.submit({"x": x}, lambda *_: None, priority=priority)
            order.queued(batcher, ticket)

    def make(observe: BatchObserver) -> Batcher:
        return Batcher(
            lambda feeds, _: [feeds["x"]], BatchPolicy(), wake=lambda _: None, observe=observe
        )

    own, copies = make(lambda _: None), make(ignore)
    queue(own, (1, 0), (2, 1))
    decision = own.next_batch(monotonic())
    assert isinstance(decision, BatchDecision)
    order.taken(own, decision, own.take(decision, monotonic()))
    queue(copies, (1, 0), (2, 0))
    for run in ([2, 1], [1], [2]):  # the whole, and its halves
        order.ran(run)
    assert not found
    order.ran([1, 2])
    assert found == ["requests ran out of order: [1, 2]"]


# -- bugs, put in by hand


def lose_a_wake_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batcher that is woken while batches are dispatched waits for another request."""

    def collect_and_dispatch(self: Scheduler) -> None:
        collectors, self._collectors = self._collectors, []
        for collect in collectors:
            collect()
        self._dispatch(scheduling.scheduler.monotonic())  # type: ignore[attr-defined]
        self._dispatch_scheduled = False  # too late

    monkeypatch.setattr(Scheduler, "_collect_and_dispatch", collect_and_dispatch)


def keep_the_lease_of_a_leaver(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller who leaves holds the version for good."""
    close = Lease.close

    def close_unless_left(self: Lease, error: BaseException | None = None) -> None:
        if not isinstance(error, Cancelled):
            close(self, error)

    monkeypatch.setattr(Lease, "close", close_unless_left)


def swap_during_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that is replaced is closed at once, even if leased."""
    monkeypatch.setattr(LeaseCount, "when_idle", lambda self, then: then())


def answer_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A response does not wait for those of earlier requests on its connection."""
    queue = HotProtocol._queue

    def queue_in_front(self: HotProtocol, cycle: HotCycle) -> None:
        queue(self, cycle)
        cycle.at_front = True

    monkeypatch.setattr(HotProtocol, "_queue", queue_in_front)


def mix_up_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a run that failed, its halves are retried in the wrong order."""
    run = Batch._run

    def run_reversed(self: Batch, tickets: list[Any]) -> None:
        run(self, tickets if tickets is self.tickets else tickets[::-1])

    monkeypatch.setattr(Batch, "_run", run_reversed)


def unload_before_the_next_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that is no longer wanted goes at once."""
    load = Registry._load

    async def unload_and_load(self: Registry, action: Load, token: CancellationToken) -> None:
        for number in list(self.catalog[action.model].versions):
            if number != action.number:
                self._unload(Unload(action.model, number))
        await load(self, action, token)

    monkeypatch.setattr(Registry, "_load", unload_and_load)


def forget_priorities(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last request to come goes last, whatever its priority."""
    monkeypatch.setattr(
        "cohort.batching.batcher.insert_by_place", lambda queue, ticket: queue.append(ticket)
    )


def mix_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    """All small requests have the priority of the first one that was read."""
    add: Callable[..., None] = Coalescer.add
    priorities: list[int] = []

    def add_as_first(self: Coalescer, *request: Any) -> None:
        *rest, priority = request
        priorities.append(priority)
        add(self, *rest, priorities[0])

    monkeypatch.setattr(Coalescer, "add", add_as_first)


def let_all_fill_a_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Low priorities are not refused before the others."""
    monkeypatch.setattr("cohort.batching.batcher.share_for", lambda priority: 1.5)


def forget_a_load_that_was_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version whose load cannot be ended is loaded again at the same time."""

    class Forgetful(LoadThreads):
        def __init__(self) -> None:
            super().__init__()
            self._left = Nothing()

    class Nothing(set[tuple[str, int]]):
        def add(self, version: tuple[str, int]) -> None: ...

    monkeypatch.setattr(registry, "LoadThreads", Forgetful)


def leave_open_what_was_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A load that is cancelled too late has opened a session that stays open."""
    monkeypatch.setattr(loading, "_close", lambda outcome: None)


def forget_to_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that lacked memory is not loaded once that is there."""
    monkeypatch.setattr(Registry, "_retry", lambda self, model, number: None)


@pytest.mark.parametrize(
    ("put_in", "first"),
    [
        (forget_priorities, 0),
        (mix_callers, 0),
        (let_all_fill_a_queue, 0),
        (lose_a_wake_up, 180),
        (keep_the_lease_of_a_leaver, 0),
        (swap_during_a_batch, 50),
        (answer_in_any_order, 0),
        (mix_up_rows, 0),
        (unload_before_the_next_is_ready, 0),
        (forget_a_load_that_was_left, 340),
        (leave_open_what_was_cancelled, 0),
        (forget_to_try_again, 30),
    ],
)
def test_a_bug_is_found(
    put_in: Callable[[pytest.MonkeyPatch], None], first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each bug breaks something that must hold; `first` is just before the seed that shows it."""
    put_in(monkeypatch)

    def look() -> None:
        for seed in range(first, first + 1000):
            World(seed).run()

    with pytest.raises(AssertionError):
        look()
