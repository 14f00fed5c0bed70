"""Durations of the faults: short in the suite, long with `make chaos`."""

from __future__ import annotations

import os
import random

LONG = os.environ.get("CHAOS") == "long"


def draw_seed() -> int:
    """The seed that SEED gives, else 1, or any one in the long form; it is printed."""
    any_one = random.SystemRandom().randrange(1, 2**32) if LONG else 1
    seed = int(os.environ.get("SEED", "0")) or any_one
    print(f"SEED={seed} gives the same moments again, as far as a process can")  # noqa: T201
    return seed
