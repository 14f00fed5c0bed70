"""How long the faults are: short in the suite, long by `make chaos`."""

from __future__ import annotations

import os
import random

LONG = os.environ.get("CHAOS") == "long"


def draw_seed() -> int:
    """The seed that SEED gives, or any; printed, so that the same moments can be tried again."""
    seed = int(os.environ.get("SEED", "0")) or random.SystemRandom().randrange(1, 2**32)
    print(f"SEED={seed} gives the same moments again, as far as a process can")  # noqa: T201
    return seed
