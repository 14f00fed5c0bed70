"""What rollouts cost those who have none, and what a shadow costs callers.

    python -m benchmarks.rollouts [ROUNDS]

Two servers stand side by side and are asked in turn, the order turning with each round, so that
what the machine does beside hits both. Ratios are medians of the rounds' ratios.

- A tiny model without a rollout, beside a rollouts.yaml that names another model, against no file
  at all: requests per second of eight callers, and CPU per request by the kernel's own count.
  Target: within 2 % on both.
- digits, callers arriving by a Poisson process, with a shadow that sees every answer, against the
  same rollout without one: the callers' p99. Target: at most 1.1 times.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TypeVar

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.client import load
from tests import onnx_models
from tests.e2e.processes import MODELS, ROOT, Cohort, cohort

T = TypeVar("T")

ROUNDS = 8
SECONDS = 2.0
RATE = 300
CALLERS = 8

STABLE = "digits: {variants: {stable: {version: 1, weight: 100}}}\n"
SHADOWED = STABLE.replace("}}}", "}}, shadow: {version: 2, sample: 1.0}}")


def main() -> None:
    """Run the rounds and print the tables."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    console = Console(width=100)
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        folder = Path(temporary)
        models = folder / "models"
        shutil.copytree(MODELS / "digits", models / "digits")
        (models / "digits" / "config.yaml").write_text("versions: all\nproviders: [cpu]\n")
        onnx_models.save(onnx_models.mlp(), models / "tiny" / "1" / "model.onnx")

        def serve(name: str, rollouts: str) -> AbstractContextManager[Cohort]:
            (folder / name).mkdir(exist_ok=True)
            file = folder / name / "rollouts.yaml"
            if rollouts:
                file.write_text(rollouts)
            return cohort(models, folder / name, rollouts=file)

        found = []
        for number in range(rounds):
            texts = [("none", ""), ("named", STABLE)]
            with ExitStack() as pair:  # new processes: one may be lucky with its memory
                order = texts[::-1] if number % 2 else texts
                servers = {name: pair.enter_context(serve(name, text)) for name, text in order}
                found += _in_turn(_ask_tiny, servers["none"], servers["named"], 2)
        console.print(_without_a_rollout(found))
        named = stack.enter_context(serve("named", STABLE))
        shadowed = stack.enter_context(serve("shadow", SHADOWED))
        console.print(_beside_a_shadow(named, shadowed, rounds, folder))
        seen = httpx.get(f"{shadowed.url}/models/digits").json()["rollout"]["shadow"]
        console.print(f"shadow: {seen['compared']} compared, {seen['dropped']} dropped")


def _ask_tiny(server: Cohort) -> tuple[float, float]:
    body = json.dumps({"inputs": {"x": [[0.0] * 4]}}).encode()
    host, port = server.url.removeprefix("http://").split(":")
    before = _cpu(server)
    address = (host, int(port))
    heard = asyncio.run(load(address, "/models/tiny/predict", [body] * CALLERS, SECONDS / 2))
    assert not heard.failures, heard.failures[0]
    count = len(heard.seconds)
    return count / SECONDS * 2, (_cpu(server) - before) / count * 1e6


def _without_a_rollout(found: Sequence[tuple[tuple[float, float], tuple[float, float]]]) -> Table:
    table = Table("tiny model", "no file", "a rollout of another model", "ratio")
    for place, name in enumerate(("requests/s", "µs of CPU per request")):
        ours = [one[place] for one, _ in found]
        theirs = [other[place] for _, other in found]
        ratio = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
        table.add_row(
            name, *(f"{statistics.median(x):.1f}" for x in (ours, theirs)), f"{ratio:.3f}"
        )
    return table


def _beside_a_shadow(alone: Cohort, shadowed: Cohort, rounds: int, folder: Path) -> Table:
    body = json.dumps({"inputs": {"image": [[[[0.5] * 8] * 8]]}})
    request = folder / "request.http"
    request.write_text(
        "POST /models/digits/predict HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n{body}",
        newline="",
    )

    def ask(server: Cohort) -> dict[str, float]:
        port = server.url.rpartition(":")[2]
        command = [sys.executable, "-m", "benchmarks.openloop"]
        command += [port, str(request), str(RATE), str(SECONDS)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        found: dict[str, float] = json.loads(done.stdout)
        assert not found["failures"]
        return found

    found = _in_turn(ask, alone, shadowed, 2 * rounds)
    table = Table(f"digits, {RATE}/s", "no shadow", "shadow of every answer", "ratio")
    for name in ("p50", "p99", "p999"):
        without = [one[name] * 1e3 for one, _ in found]
        beside = [other[name] * 1e3 for _, other in found]
        ratio = statistics.median(b / a for a, b in zip(without, beside, strict=True))
        cells = (f"{statistics.median(x):.3f}" for x in (without, beside))
        table.add_row(f"{name}, ms", *cells, f"{ratio:.3f}")
    return table


def _in_turn(
    ask: Callable[[Cohort], T], one: Cohort, other: Cohort, rounds: int
) -> list[tuple[T, T]]:
    for server in (one, other):
        ask(server)  # warm
    found = []
    for number in range(rounds):
        if number % 2:
            second = ask(other)
            found.append((ask(one), second))
        else:
            found.append((ask(one), ask(other)))
    return found


def _cpu(server: Cohort) -> float:
    """Seconds on a core so far, of all threads, in the kernel's nanoseconds."""
    tasks = Path(f"/proc/{server.process.pid}/task").glob("*/schedstat")
    return sum(int(one.read_text().split()[0]) for one in tasks) / 1e9


if __name__ == "__main__":
    main()
