"""Simulate many lives of a server, or replay one by its seed: `make simulate`."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from rich.console import Console
from rich.progress import track

from tools.simulation.world import World


def main() -> int:
    """Simulate; return 1 if something did not hold."""
    parser = argparse.ArgumentParser(prog="python -m tools.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2000, help="number of lives; default 2000")
    parser.add_argument("--first", type=int, default=0, help="the first seed; default 0")
    parser.add_argument("--seed", type=int, help="this one only, with all that happens in it")
    given = parser.parse_args()
    if given.seed is not None:
        World(given.seed, trace=print).run()
        return 0
    console = Console(stderr=True)
    statuses: Counter[int] = Counter()
    began = time.monotonic()
    for seed in track(range(given.first, given.first + given.seeds), "seeds", console=console):
        world = World(seed)
        try:
            world.run()
        except Exception as error:  # noqa: BLE001 - whatever it is, the seed is what counts
            console.print(f"seed {seed}: {type(error).__name__}: {error}", style="red")
            console.print(f"again: python -m tools.simulation --seed {seed}")
            return 1
        statuses += world.statuses
    took = time.monotonic() - began
    console.print(f"{given.seeds} seeds in {took:.1f} s; responses by status: {dict(statuses)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
