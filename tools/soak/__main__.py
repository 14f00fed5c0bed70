"""Run a server under load, changes and faults, and check what must hold: `make soak`."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from tools.soak.soak import soak


def main() -> int:
    """Soak; return 1 if something did not hold."""
    parser = argparse.ArgumentParser(prog="python -m tools.soak", description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=600, help="length of the soak; default 600"
    )
    parser.add_argument("--seed", type=int, help="gives requests and faults; default: any")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(2**32) if given.seed is None else given.seed
    console = Console(stderr=True)
    console.print(f"seed {seed}, {given.seconds:g} s")
    with tempfile.TemporaryDirectory(prefix="cohort-soak-") as folder:
        try:
            console.print(asyncio.run(soak(Path(folder), seed, given.seconds)))
        except (AssertionError, ExceptionGroup):
            console.print_exception()
            console.print(f"again: python -m tools.soak --seed {seed} --seconds {given.seconds:g}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
