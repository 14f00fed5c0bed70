"""Compare `cohort plan` with 1, 2 and 4 replicas behind nginx, and with the simulation.

    python -m benchmarks.planning               prints a table
    python -m benchmarks.planning --write       writes results/planning.md and plots/planning.png

A request waits 40 ms in a transform that handles one request at a time, so that four replicas fit
on two cores. The time of a lone request is measured first; it is the profile of the plan. Requests
arrive at random times (Poisson).

nginx sends each request to the replica with the fewest connections, so each replica has its queue.
The model assumes one queue for all.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from matplotlib import pyplot

from benchmarks.fronts import started_nginx
from benchmarks.machine import describe
from benchmarks.pipelines import served, write_models
from benchmarks.servers import free_port
from cohort.planning import Queue, simulate

HERE = Path(__file__).parent
RESULTS = HERE / "results/planning.md"
PLOT = HERE / "plots/planning.png"

TRANSFORM = """\
import time


class Transform:
    inputs = {"x": ("FP32", ["N", 16])}

    def before(self, request):
        time.sleep(0.04)
        return {"x": request["x"]}
"""
CONFIG = "transform: transform:Transform\ntimeout_ms: 60000\nbatching: {max_batch_size: 1}\n"

SERVERS = """
  upstream replicas {{ least_conn; {servers} keepalive 64; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://replicas;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
    }}
  }}
"""

REPLICAS = (1, 2, 4)
LOADS = (0.5, 0.7, 0.85)


@dataclass(frozen=True)
class Comparison:
    """The 99th percentiles of one load, in seconds."""

    replicas: int
    load: float
    planned: float
    simulated: float
    measured: Sequence[float]


@contextlib.contextmanager
def balanced(folder: Path, count: int) -> Iterator[str]:
    """Start replicas and an nginx in front of them; yield its address."""
    with contextlib.ExitStack() as stack:
        urls = []
        for number in range(count):
            place = folder / str(number)
            shutil.copytree(folder / "models", place / "models")
            urls.append(stack.enter_context(served(place))[0])
        port = free_port()
        front = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = " ".join(f"server {url.removeprefix('http://')};" for url in urls)
        stack.enter_context(
            started_nginx(front, SERVERS.format(servers=servers, port=port), [port])
        )
        yield f"http://127.0.0.1:{port}"


def bench(url: str, seconds: float, *options: str) -> dict[str, float]:
    """Return the latencies in milliseconds that `cohort bench` prints."""
    command = [sys.executable, "-m", "cohort", "bench", url, "--model", "first", "--json"]
    command += ["--seconds", str(seconds), *options]
    found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    if found["failed"] or found["not_sent"]:
        raise SystemExit(f"requests failed: {found['failed']}, not sent: {found['not_sent']}")
    latencies: dict[str, float] = found["latency_ms"]
    return latencies


def compared(seconds: float, rounds: int) -> list[Comparison]:
    """Measure each number of replicas at each load."""
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_models(folder / "models")
        shutil.rmtree(folder / "models/both")
        (folder / "models/first/transform.py").write_text(TRANSFORM)
        (folder / "models/first/config.yaml").write_text(CONFIG)
        for count in REPLICAS:
            with balanced(folder, count) as url:
                alone = bench(url, 10, "--connections", "1")["mean"] / 1000
                for load in LOADS:
                    rate = load * count / alone
                    took = [
                        bench(url, seconds, "--rate", f"{rate:.3f}", "--seed", str(seed))["p99"]
                        for seed in range(rounds)
                    ]
                    planned = Queue(rate, count, alone).time(0.99)
                    simulated = simulate(rate, count, {1: alone})
                    measured = [one / 1000 for one in took]
                    found.append(Comparison(count, load, planned, simulated, measured))
                    print(_row(found[-1]), flush=True)
            for number in range(count):
                shutil.rmtree(folder / str(number))
    return found


def _row(one: Comparison) -> str:
    middle = median(one.measured)
    return (
        f"| {one.replicas} | {one.load:.0%} | {one.planned * 1000:.0f} | "
        f"{one.simulated * 1000:.0f} | {middle * 1000:.0f} "
        f"({min(one.measured) * 1000:.0f} to {max(one.measured) * 1000:.0f}) | "
        f"{middle / one.planned:.2f} |"
    )


HEAD = """\
| replicas | load | p99 planned, ms | simulated | measured: median (range) | measured / planned |
|---|---|---|---|---|---|
"""


def draw(found: Sequence[Comparison]) -> None:
    """Plot the planned line, the simulated one and the measured points by load."""
    figure, axes = pyplot.subplots(1, len(REPLICAS), figsize=(10, 3.4), sharey=True)
    for place, count in zip(axes, REPLICAS, strict=True):
        mine = [one for one in found if one.replicas == count]
        loads = [one.load for one in mine]
        place.plot(loads, [1000 * one.planned for one in mine], "-", label="planned (M/G/c)")
        place.plot(loads, [1000 * one.simulated for one in mine], "--", label="simulated")
        for one in mine:
            points = [1000 * value for value in one.measured]
            place.plot([one.load] * len(points), points, "k.", label="measured")
        place.set_title(f"{count} replica{'s' if count > 1 else ''}")
        place.set_xlabel("load")
    axes[0].set_ylabel("p99, ms")
    handles, labels = axes[0].get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    axes[0].legend(unique.values(), unique.keys())
    figure.tight_layout()
    figure.savefig(PLOT, dpi=100)


def main() -> None:
    """Measure, print the table, and write it if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="The length of each measurement."
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true")
    chosen = parser.parse_args()
    os.environ["COHORT_MODEL_CODE"] = "allow"
    print(HEAD, end="")
    found = compared(chosen.seconds, chosen.rounds)
    if chosen.write:
        draw(found)
        day = datetime.now(UTC).date()
        command = (
            f"python -m benchmarks.planning --seconds {chosen.seconds:g} --rounds {chosen.rounds}"
        )
        rows, facts = "\n".join(map(_row, found)), describe()
        where = f"{facts['machine']}, cohort {facts['cohort']}"
        text = f"# Planned and measured replicas\n\n`{command} --write`, {day}: {where}.\n\n"
        RESULTS.write_text(f"{text}{HEAD}{rows}\n\n![p99 by load](../plots/planning.png)\n")


if __name__ == "__main__":
    main()
