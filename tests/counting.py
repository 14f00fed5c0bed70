"""How tests see that work grows no faster than it may: against a control of the same moment.

A number of seconds says most of the machine. What is compared here was measured in the same
process, one right after the other, over and over, by the time on a processor, which does not count
waiting. Only minima count: whatever else a machine does makes work seem slower, and never faster.
So a limit can be some times what is right, and some times less than what a fault gives.
"""

from __future__ import annotations

from collections.abc import Callable
from time import thread_time

import pytest

ROUNDS = 10
"""Measurements at most. Nearly always the first one is as it should be."""

HARMLESS = 0.05
"""Seconds on a processor that are no matter, however little less of the same takes: a few
megabytes that no longer fit into a processor's cache take three times as long as they did in it."""


def check_growth(
    small: Callable[[], object],
    large: Callable[[], object],
    *,
    most: float,
    harmless: float = HARMLESS,
    clock: Callable[[], float] = thread_time,
    base: Callable[[], object] | None = None,
) -> None:
    """Fail if `large` takes more than `most` times the processor time of `small`.

    harmless: Seconds that `large` may take in any case.
    clock: Seconds on a processor; default: those of this thread.
    base: Work whose processor time is subtracted from both, because any work takes as much, but no
        more than three quarters of what `small` takes; default: nothing is subtracted.

    Work that keeps the limit is measured once, and what is beyond it has to be so ROUNDS times.
    """

    def cost(work: Callable[[], object]) -> float:
        before = clock()
        work()
        return clock() - before

    of_small = of_large = of_base = float("inf")
    for _ in range(ROUNDS):
        of_base = min(of_base, cost(base)) if base else 0.0
        of_small, of_large = min(of_small, cost(small)), min(of_large, cost(large))
        subtracted = min(of_base, of_small * 0.75)
        if of_large - subtracted <= max(most * (of_small - subtracted), harmless):
            return
    pytest.fail(
        f"{of_large * 1000:.2f} ms, more than {most:g} times the {of_small * 1000:.2f} ms of less,"
        f" {subtracted * 1000:.2f} ms subtracted from both"
    )
