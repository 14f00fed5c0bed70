"""Candidates: a process each, which answers a number of callers and reports when tokens came."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.generative.environments import (
    GENAI,
    LLAMA,
    OPENVINO,
    PEERS,
    NodePackages,
    PythonPackages,
)
from benchmarks.servers import ROOT

MAX_CALLERS = 64

MAX_SECONDS = 40.0
"""Time for one answer to all callers; a candidate that takes longer is ended."""


@dataclass(frozen=True)
class Candidate:
    """A way to answer callers.

    name: As in the tables.
    program: File in `peers`.
    environment: Where it runs; None: Cohort's own.
    gguf: True if it reads GGUF instead of a version's folder.
    """

    name: str
    program: str
    environment: PythonPackages | NodePackages | None = None
    gguf: bool = False


CANDIDATES = (
    Candidate("Cohort, in process", "cohort_engine.py"),
    Candidate("Cohort, HTTP streams", "cohort_streams.py"),
    Candidate("onnxruntime-genai, loop", "genai_loop.py", GENAI),
    Candidate("onnxruntime-genai, Engine", "genai_engine.py", GENAI),
    Candidate("openvino-genai, continuous", "openvino_batching.py", OPENVINO, gguf=True),
    Candidate("llama.cpp, node-llama-cpp", "llama.mjs", LLAMA, gguf=True),
)


class Worker:
    """A started candidate. Raises RuntimeError if it cannot be installed, or ends.

    ready: Its report about itself at its start.
    """

    def __init__(
        self, candidate: Candidate, folder: Path, gguf: Path, threads: int, provider: str = "cpu"
    ) -> None:
        program = PEERS / candidate.program
        home = candidate.environment
        command = home.command(program) if home else [sys.executable, str(program)]
        self.log = folder.parent / f"{program.stem}.log"
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'app'}:{ROOT}"}
        if home:
            environment |= {"PYTHONPATH": "", "OMP_NUM_THREADS": str(threads)}
        path = folder
        if candidate.gguf:
            path = gguf
        if home is OPENVINO and gguf.stem.endswith("-fp32"):
            path = gguf.with_name(f"{gguf.stem}-f16.gguf")
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, str(path), str(threads), str(MAX_CALLERS), provider],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                text=True, env=environment,
            )  # fmt: skip
        self.ready = str(self._read())

    def ask(self, prompts: Sequence[Sequence[int]], tokens: int, late: int | None) -> Answered:
        """Have all callers answered."""
        assert self._process.stdin is not None
        asked = {"prompts": prompts, "tokens": tokens, "late": late}
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        return Answered(**self._read())

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], MAX_SECONDS)
        if not ready:
            self._process.kill()
            self._process.wait()
            raise RuntimeError(f"took more than {MAX_SECONDS:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            last = self.log.read_text(errors="replace").strip().splitlines()[-1:]
            raise RuntimeError(" ".join(last) or f"ended with {self._process.returncode}")
        return json.loads(line)


@dataclass(frozen=True)
class Answered:
    """One round of callers.

    submitted: The time of each caller's request, in seconds.
    times: The times of each caller's tokens, or of the pieces that brought them.
    cpu: CPU seconds of the candidate.
    """

    submitted: Sequence[float]
    times: Sequence[Sequence[float]]
    cpu: float

    @property
    def seconds(self) -> float:
        """From the first request to the last token."""
        return max(max(one) for one in self.times) - min(self.submitted)

    @property
    def first(self) -> list[float]:
        """Seconds to each caller's first token."""
        return [at[0] - asked for asked, at in zip(self.submitted, self.times, strict=True)]

    @property
    def between(self) -> list[float]:
        """Seconds between a caller's tokens."""
        return [after - before for one in self.times for before, after in pairwise(one)]

    @property
    def late_steps(self) -> float:
        """Tokens that each of the others got while the last caller waited for its first one."""
        since, until = self.submitted[-1], self.times[-1][0]
        return median(sum(since < at <= until for at in one) for one in self.times[:-1])
