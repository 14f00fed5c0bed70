"""Latency of one model while the transform of another one misbehaves.

    python -m benchmarks.transforms               prints a table
    python -m benchmarks.transforms --write       writes results/transforms.md

A round has two turns with a steady load on a plain model. In the second turn, two callers also ask
the model with the transform. The ratio of a round compares its turns. In the first row neither turn
has such callers: its ratios show the noise of the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median, quantiles

import httpx

from benchmarks.machine import describe
from benchmarks.pipelines import ROW, served, write_models
from benchmarks.usage import busy_seconds

RESULTS = Path(__file__).parent / "results/transforms.md"

NOBODY = "gets no requests"

KINDS = {
    NOBODY: "",
    "behaves": "",
    "takes 20 ms of Python": "end = time.monotonic() + 0.02\nwhile time.monotonic() < end: pass",
    "leaves four busy threads": "[busy() for _ in range(4 - threading.active_count())]",
    "loops until its time limit": "while True: pass",
    "leaks until its memory is full": "kept.append(bytearray(os.urandom(1 << 16) * 1024))",
    "crashes": "os.abort()",
    "prints without end": "while True: os.write(2, b'x' * 65536)",
}
"""The body of `before`, by the label in the table."""

MODULE = """\
import os
import threading
import time

import numpy as np

kept = []


def spin():
    while True:
        pass


def busy():
    threading.Thread(target=spin, daemon=True).start()


class Transform:
    inputs = {{"x": ("FP32", ["N", 16])}}

    def before(self, request):
{body}
        return {{"x": request["x"]}}
"""

CALLERS = 4
PAUSE = 0.01
"""Seconds between two requests of a caller."""

TROUBLING = 2


def write_troubled(models: Path) -> list[str]:
    """Return a model for each kind, whose calls may take a second; their names."""
    names = []
    for number, body in enumerate(KINDS.values()):
        names.append(f"troubled-{number}")
        folder = models / names[-1]
        (folder / "1").mkdir(parents=True)
        (folder / "1/model.onnx").write_bytes((models / "first/1/model.onnx").read_bytes())
        lines = [f"        {line}" for line in body.splitlines()]
        text = MODULE.format(body="\n".join(lines))
        (folder / "transform.py").write_text(text, encoding="utf-8")
        config = "transform: transform:Transform\ntimeout_ms: 1000\n"
        (folder / "config.yaml").write_text(config, encoding="utf-8")
    return names


async def asked(url: str, other: str, seconds: float) -> tuple[list[float], int]:
    """Seconds of each request to the plain model, and the count of requests to the other one."""
    took: list[float] = []
    until = time.perf_counter() + seconds
    troubles = 0

    async def caller() -> None:
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            while (began := time.perf_counter()) < until:
                answer = await client.post("/models/first/predict", json={"inputs": {"x": ROW}})
                answer.raise_for_status()
                took.append(time.perf_counter() - began)
                await asyncio.sleep(PAUSE)

    async def troubling() -> None:
        nonlocal troubles
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            while True:
                await client.post(f"/models/{other}/predict", json={"inputs": {"x": ROW}})
                troubles += 1
                await asyncio.sleep(PAUSE)

    trouble = [asyncio.create_task(troubling()) for _ in range(TROUBLING if other else 0)]
    await asyncio.gather(*[caller() for _ in range(CALLERS)])
    for task in trouble:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    return took, troubles


def p99(took: list[float]) -> float:
    """Return the 99th percentile in milliseconds."""
    return quantiles(took, n=100)[98] * 1000


def busy_cores(seconds: float) -> float:
    """Return the cores that other work uses, while this waits."""
    before = busy_seconds()
    time.sleep(seconds)
    return (busy_seconds() - before) / seconds


def measured(rounds: int, seconds: float) -> list[list[str]]:
    """Return the rows of the table."""
    found: dict[str, list[tuple[float, float, int]]] = {kind: [] for kind in KINDS}
    os.environ["COHORT_MODEL_CODE"] = "allow"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_models(folder / "models")
        names = write_troubled(folder / "models")
        with served(folder) as (url, _):
            for _ in range(rounds):
                for kind, model in zip(KINDS, names, strict=True):
                    alone, _ = asyncio.run(asked(url, "", seconds))
                    other = "" if kind == NOBODY else model
                    beside, troubles = asyncio.run(asked(url, other, seconds))
                    found[kind].append((p99(alone), p99(beside), troubles))
    return [_row(kind, some) for kind, some in found.items()]


def _row(kind: str, some: list[tuple[float, float, int]]) -> list[str]:
    alone = [one[0] for one in some]
    beside = [one[1] for one in some]
    ratios = [two / one for one, two, _ in some]
    return [
        kind,
        *(f"{median(each):.1f} ({min(each):.1f} to {max(each):.1f})" for each in (alone, beside)),
        f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
        str(sum(one[2] for one in some)),
    ]


def table(rows: list[list[str]]) -> str:
    """Return a table of Markdown."""
    head = [
        "its transform",
        "p99 alone, ms",
        "p99 next to it, ms",
        "ratio",
        "its requests",
    ]
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Measure, and print or write a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    before = busy_cores(10)
    rows = measured(options.rounds, options.seconds)
    cores = f"{before:.1f} cores before, {busy_cores(10):.1f} after"
    print(f"{table(rows)}\n\nOther work used {cores}.")
    if not options.write:
        return
    machine = describe()
    facts = "\n".join(f"- {key}: {machine[key]}" for key in ("machine", "python", "cohort"))
    text = (
        "# Latency next to a transform that misbehaves\n\n"
        "Written by `python -m benchmarks.transforms --write`, "
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC.\n{CALLERS} callers ask a tiny plain model, each "
        f"{PAUSE * 1000:.0f} ms after its last answer, while {TROUBLING} ask one with the "
        "transform of the table.\nMedians of rounds, with their range; the ratio is of two turns "
        "one after the other.\nThe callers run on the same machine.\n\n"
        f"{facts}\n- {options.rounds} rounds of {options.seconds:g} s each; other work on the "
        f"machine used {cores}\n\n{table(rows)}\n"
    )
    RESULTS.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
