"""Measure the waits of a light caller while /metrics and /openapi.json are read.

    python -m benchmarks.scrapes [--models 100] [--rounds 3]

Copies of a tiny model are served. One caller sends to one of them 200 times a second, whether or
not earlier requests are answered. Another process sends to each model once, waits and reads the
page, again and again, so every version's counts have changed at each scrape. The row "idle" reads
nothing, "asked" sends to the models without reading. The row "kept" reads a document that was
written before. The last row reads one that is written again: 17 of single models are read before
it. Waits are those of the light caller. The round with the best worst wait counts, because a busy
machine adds its own waits. Design: a page takes 5 ms of the event loop at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

from benchmarks.client import Heard, arrivals
from tests import onnx_models
from tests.e2e.processes import Cohort, cohort

RATE = 200.0
SECONDS = 6.0
PAGES = ("idle", "asked", "/metrics", "kept /openapi.json", "/openapi.json")
NOT_KEPT = 17
"""Documents after which the server has dropped all former ones."""

READING = """
import http.client, json, sys, time
port, models, page = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
body = json.dumps({"input": [[0.0] * 4]})
server = http.client.HTTPConnection("127.0.0.1", port)
while True:
    for number in range(models if page in ("asked", "/metrics") else 0):
        server.request("POST", f"/models/m{number}/predict", body)
        assert server.getresponse().read()
    for number in range(int(sys.argv[4]) if page == "/openapi.json" else 0):
        server.request("GET", f"/openapi.json?model=m{number}")
        assert server.getresponse().read()
    time.sleep(0.1)
    began = time.perf_counter()
    length = 0
    if "/" in page:
        server.request("GET", page.split()[-1])
        length = len(server.getresponse().read())
    print(json.dumps((time.perf_counter() - began, length)), flush=True)
    time.sleep(0.2)
"""


def main() -> None:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    table = Table(
        Column("read", no_wrap=True), "bytes", "took ms", "p50 ms", "p99 ms", "worst ms", "CPU ms/s"
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        model = onnx_models.mlp()
        for number in range(chosen.models):
            onnx_models.save(model, folder / f"models/m{number}/1/model.onnx")
        with cohort(folder / "models", folder) as server:
            for page in PAGES:
                found = [round_of(server, page, chosen.models) for _ in range(chosen.rounds)]
                heard, reads, busy = min(found, key=lambda one: max(one[0].seconds))
                table.add_row(
                    page,
                    f"{reads[-1][1]:,}",
                    f"{sorted(seconds for seconds, _ in reads)[len(reads) // 2] * 1e3:.1f}",
                    f"{heard.quantile(0.5) * 1e3:.2f}",
                    f"{heard.quantile(0.99) * 1e3:.2f}",
                    f"{max(heard.seconds) * 1e3:.1f}",
                    f"{busy:.0f}",
                )
    Console().print(table)


def round_of(
    server: Cohort, page: str, models: int
) -> tuple[Heard, list[tuple[float, int]], float]:
    """Return the light caller's results, seconds and bytes of reads, and CPU ms a second."""
    port = server.url.rpartition(":")[2]
    body = json.dumps({"input": [[0.0] * 4]}).encode()
    with subprocess.Popen(
        [sys.executable, "-c", READING, port, str(models), page, str(NOT_KEPT)],
        stdout=subprocess.PIPE,
    ) as reader:
        assert reader.stdout is not None
        try:
            reader.stdout.readline()  # the first one of each kind
            before = busy_seconds(server.process.pid)
            gc.disable()  # the caller's own pauses are not the server's
            path = "/models/m0/predict"
            heard = asyncio.run(
                arrivals(("127.0.0.1", int(port)), path, body, RATE, SECONDS, lines=4)
            )
            busy = (busy_seconds(server.process.pid) - before) / SECONDS * 1e3
        finally:
            gc.enable()
            reader.kill()
        reads = [json.loads(line) for line in reader.stdout]
    assert not heard.failures, heard.failures
    return heard, reads or [(float("nan"), 0)], busy


def busy_seconds(pid: int) -> float:
    """Return the processor time that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


if __name__ == "__main__":
    main()
