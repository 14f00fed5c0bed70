"""Open mutated model files as an inspection does, and count the outcomes: `make fuzz-models`.

    python -m tools.fuzz_models --count 20000 --seed 1 --into folder

Mutation number n of a seed is the same every time. Files that end the child are kept.
"""

from __future__ import annotations

import argparse
import random
import signal
import tempfile
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

from cohort.inspection.inspector import OPEN_AND_RUN, start_process
from cohort.inspection.job import OPENED, Job
from cohort.session.opening import SessionOptions
from cohort.system.jobs import (
    JobFailed,
    JobLimits,
    JobOutOfMemory,
    JobProcess,
    JobTimedOut,
)
from tools.fuzz_models.mutations import corpus, mutate

SECONDS, MEMORY = 5, 1 << 30

REFUSED, OUT_OF_MEMORY, CRASHED = "refused", "out of memory", "crashed"
OUT_OF_CPU_TIME, OUT_OF_TIME = "out of CPU time", "out of time"


class Outcome(NamedTuple):
    """The outcome of a file: a word and, for a signal, the signal and the step."""

    word: str
    signature: str = ""


class Opening:
    """Opens files in a child process, and starts another child after each crash."""

    def __init__(self) -> None:
        self._child: JobProcess | None = None

    def try_file(self, path: Path) -> Outcome:
        """Open and run the model at `path`; if that ends the child, only open it."""
        job = Job(
            path=str(path), session=asdict(SessionOptions()), memory_limit_mb=None, max_bytes=None,
            max_nodes=1_000_000, custom_ops=(), runs=True, seconds=SECONDS, memory=MEMORY,
        )  # fmt: skip
        outcome = self._try(job)
        if outcome.signature:
            opened = self._try(replace(job, runs=False))
            step = "run" if not opened.signature else "open"
            return Outcome(outcome.word, f"{step}: {outcome.signature}")
        return outcome

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.close()
            self._child = None

    def _try(self, job: Job) -> Outcome:
        self._child = self._child or start_process()
        limits = JobLimits(seconds=SECONDS * 20, confined=True)
        try:
            answer = self._child.do(OPEN_AND_RUN, {"job": asdict(job)}, limits=limits)
        except JobFailed as failed:
            self.close()
            return _outcome(failed)
        return Outcome(OPENED if answer[OPENED] else REFUSED)


def _outcome(failed: JobFailed) -> Outcome:
    if isinstance(failed, JobOutOfMemory):
        return Outcome(OUT_OF_MEMORY)
    word = OUT_OF_TIME if isinstance(failed, JobTimedOut) else CRASHED
    if failed.signal == signal.SIGXCPU:
        word = OUT_OF_CPU_TIME
    return Outcome(word, f"signal {failed.signal or 0:d} {failed.last_line}".strip())


def main() -> None:
    """Try mutations and print the counts."""
    parser = argparse.ArgumentParser(prog="make fuzz-models", description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--into", type=Path, default=Path(tempfile.gettempdir()) / "fuzz-models")
    arguments = parser.parse_args()
    arguments.into.mkdir(parents=True, exist_ok=True)
    outcomes: Counter[str] = Counter()
    signatures: Counter[str] = Counter()
    files, opening = corpus(), Opening()
    print(f"corpus: {len(files)} files", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        for number in range(arguments.first, arguments.first + arguments.count):
            rng = random.Random(f"{arguments.seed}-{number}")
            kind, content = mutate(rng.choice(files), rng)
            path.write_bytes(content)
            outcome = opening.try_file(path)
            outcomes[outcome.word] += 1
            if outcome.signature:
                signatures[outcome.signature] += 1
                (arguments.into / f"{arguments.seed}-{number}.onnx").write_bytes(content)
                print(f"{number} {kind}: {outcome}", flush=True)
            if number % 1000 == 999:
                print(number + 1, dict(outcomes), flush=True)
    opening.close()
    print(f"{sum(outcomes.values())} mutations: {dict(outcomes.most_common())}")
    for signature, count in signatures.most_common():
        print(f"{count:6} {signature}")


if __name__ == "__main__":
    main()
