"""Measure a fast model next to a slow one, against alone.

    python -m benchmarks.neighbour

A model whose run takes about 200 ms is kept busy by eight callers. Requests for a tiny one arrive
300 times a second whether or not earlier ones are answered. Rounds with and without the slow model
alternate in one run. Design: at most 2x at p99.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.client import Heard, arrivals, load
from tests import onnx_models
from tests.e2e.processes import cohort

ROUNDS = 5
SECONDS = 5.0
RATE = 300.0
SLOW_NODES = 1600


def main() -> None:
    """Run the rounds and print the table."""
    console = Console()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        onnx_models.save(onnx_models.mlp(), folder / "models/fast/1/model.onnx")
        onnx_models.save(
            onnx_models.slow(nodes=SLOW_NODES, size=256), folder / "models/slow/1/model.onnx"
        )
        with cohort(folder / "models", folder) as server, console.status("warming up") as status:
            host, port = server.url.removeprefix("http://").split(":")
            address = (host, int(port))
            fast = json.dumps({"inputs": {"x": [[0.0] * 4]}}).encode()
            slow = [json.dumps({"inputs": {"x": [[0.0] * 4]}}).encode()] * 8

            async def round_of(beside: bool) -> tuple[Heard, Heard]:
                """Run one round; return the results of the fast model and of the slow one."""
                path = "/models/{}/predict".format
                if not beside:
                    return await arrivals(address, path("fast"), fast, RATE, SECONDS), Heard()
                quick, long = await asyncio.gather(
                    arrivals(address, path("fast"), fast, RATE, SECONDS),
                    load(address, path("slow"), slow, SECONDS),
                )
                return quick, long

            asyncio.run(round_of(True))
            alone, beside, slow_p50 = [], [], []
            for number in range(ROUNDS):
                status.update(f"round {number + 1} of {ROUNDS}")
                alone.append(asyncio.run(round_of(False))[0])
                quick, long = asyncio.run(round_of(True))
                beside.append(quick)
                slow_p50.append(long.quantile(0.5))
    table = Table("fast model", "answers/s", "p50 ms", "p99 ms", "p99 x alone")
    base = statistics.median(heard.quantile(0.99) for heard in alone)
    for name, rounds in (("alone", alone), ("with the slow one", beside)):
        p99 = statistics.median(heard.quantile(0.99) for heard in rounds)
        table.add_row(
            name,
            f"{statistics.median(len(heard.seconds) / SECONDS for heard in rounds):.0f}",
            f"{statistics.median(heard.quantile(0.5) for heard in rounds) * 1e3:.2f}",
            f"{p99 * 1e3:.2f}",
            f"{p99 / base:.2f}",
        )
    console.print(table)
    console.print(f"slow model: p50 {statistics.median(slow_p50) * 1e3:.0f} ms with 8 callers")
    failures = [failure for heard in (*alone, *beside) for failure in heard.failures]
    console.print(f"failures: {len(failures)}")


if __name__ == "__main__":
    main()
