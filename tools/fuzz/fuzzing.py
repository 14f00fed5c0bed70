"""Run a target with libFuzzer in a separate process."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools import ROOT

KEPT = ROOT / "build" / "fuzz"

LONGEST = 4096
"""Maximum bytes of an input."""

SLOWEST = 20
"""Maximum seconds for an input, also on a busy machine; all inputs are short."""

MEMORY_MB = 2048


@dataclass(frozen=True)
class Outcome:
    """The result of fuzzing one target.

    said: The output of libFuzzer and the target.
    failures: Files, each with an input that failed.
    """

    said: str
    failures: Sequence[Path]


def module(target: str) -> str:
    """Return the name of a target's module."""
    return f"tools.fuzz.{target}"


def fuzz(target: str, *, seed: int, folder: Path = KEPT, **limits: int) -> Outcome:
    """Fuzz until an input fails or a limit of libFuzzer is reached, and keep the inputs found.

    target: The target's name.
    seed: The seed of libFuzzer's random numbers, from 1.
    folder: Where `corpus/TARGET`, the inputs that reached new code, and `failures` are written.
    limits: Options of libFuzzer: max_total_time in seconds, runs.
    """
    corpus, failures = folder / "corpus" / target, folder / "failures"
    corpus.mkdir(parents=True, exist_ok=True)
    failures.mkdir(parents=True, exist_ok=True)
    before = set(failures.glob(f"{target}-*"))
    with tempfile.TemporaryDirectory() as temporary:
        seeds, words = Path(temporary, "seeds"), Path(temporary, "words")
        seeds.mkdir()
        source = importlib.import_module(module(target))
        for number, data in enumerate(source.SEEDS):
            Path(seeds, f"{number:04}").write_bytes(data)
        words.write_text("".join(f'"{_escaped(word)}"\n' for word in source.TOKENS))
        options = {
            **limits,
            "seed": seed,
            "dict": words,
            "artifact_prefix": f"{failures}/{target}-",
            "max_len": LONGEST,
            "timeout": SLOWEST,
            "rss_limit_mb": MEMORY_MB,
            "print_final_stats": 1,
        }
        ended = _run(target, *(f"-{name}={value}" for name, value in options.items()),
                     str(corpus), str(seeds))  # fmt: skip
    found = sorted(set(failures.glob(f"{target}-*")) - before)
    assert found or not ended.returncode, ended.stdout  # it could not begin
    return Outcome(ended.stdout, found)


def _run(target: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tools.fuzz.one_target", module(target), *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )


def _escaped(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)


def replay(file: Path) -> None:
    """Run the target on a file of `failures` again, which raises the same error."""
    target = file.name.partition("-")[0]
    importlib.import_module(module(target)).check(file.read_bytes())
