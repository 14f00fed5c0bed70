"""Check that work grows no faster than it may, against a control of the same moment.

A number of seconds depends mostly on the machine. The times compared here are measured in one
process, alternately and repeatedly, on the processor's clock, which excludes waiting. Only minima
count: whatever else a machine does makes work seem slower, and never faster. So a limit can be some
times what is right, and some times less than what a fault gives.
"""

from __future__ import annotations

from collections.abc import Callable
from time import thread_time

import pytest

ROUNDS = 10
"""Measurements at most. Nearly always the first one is as it should be."""

HARMLESS = 0.05
"""Seconds of processor time that never fail a check.

A few megabytes that no longer fit into the processor's cache take three times as long.
"""


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
    base: Work whose processor time is subtracted from both, because any work takes as much. At most
        three quarters of `small`'s time is subtracted; default: nothing.

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
