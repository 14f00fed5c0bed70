"""Fuzz for minutes, or replay inputs that failed: `make fuzz`."""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.fuzz import TARGETS
from tools.fuzz.fuzzing import fuzz, replay


def main() -> int:
    """Fuzz or replay; return 1 if an input fails."""
    asked = arguments().parse_args()
    if asked.replay:
        for file in asked.replay:
            replay(file)
            say(f"{file} passes")
        return 0
    failed = False
    for target in asked.targets or TARGETS:
        say(f"{target}, {asked.seconds} s, --seed {asked.seed}")
        outcome = fuzz(target, seed=asked.seed, max_total_time=asked.seconds)
        lines = outcome.said.splitlines()
        if not outcome.failures:
            say(f"{target}: {last_of(lines)}")
            continue
        failed = True
        say("\n".join(lines[-40:]))
        for file in outcome.failures:
            again = f"make fuzz ARGS='--replay {file.relative_to(Path.cwd())}'"
            say(f"{target} FAILED; again: {again}")
    return int(failed)


def say(text: str) -> None:
    sys.stderr.write(f"fuzz: {text}\n")


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make fuzz ARGS=…", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}")
    parser.add_argument("--seconds", type=int, default=120, help="for each target (120)")
    parser.add_argument(
        "--seed", type=int, default=random.randrange(1, 2**31), help="one that was printed before"
    )
    parser.add_argument("--replay", nargs="+", type=Path, metavar="FILE", help="inputs that failed")
    return parser


def last_of(lines: Sequence[str]) -> str:
    """Return libFuzzer's last line about coverage."""
    return next((line for line in reversed(lines) if "cov:" in line), "nothing was run")


if __name__ == "__main__":
    sys.exit(main())
