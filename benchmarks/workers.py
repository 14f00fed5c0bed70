"""Measure several workers on this machine: `python -m benchmarks.workers [--counts 1 2]`.

Each round starts a server with a number of workers, warms it up and has wrk send to `/predict` by
64 connections. The load generator's own cores are shown next to the server's: both share the
machine. With `--weights` memory is measured: a model of 64 MiB, its weights in the file or outside
it.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.usage import cpu_seconds
from tests.e2e.processes import MODELS, Cohort
from tests.workers.hosts import host, workers_of

SECONDS = 5
SCRIPT = """
wrk.method = "POST"
wrk.headers["content-type"] = "application/json"
wrk.path = "/models/%s/predict"
wrk.body = '%s'
"""
ASKED = {
    "iris": {"features": [[5.1, 3.5, 1.4, 0.2]]},
    "digits": {"image": np.zeros((1, 1, 8, 8)).tolist()},
}


def main() -> None:
    """Measure, and print a line for each round."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--weights", action="store_true")
    chosen = parser.parse_args()
    if chosen.weights:
        for external in (False, True):
            for count in chosen.counts:
                _measure_memory(count, external=external)
        return
    for model, inputs in ASKED.items():
        for _ in range(chosen.rounds):
            for count in chosen.counts:
                _measure_load(model, inputs, count, chosen.connections)


@contextmanager
def _started(count: int, models: Path = MODELS) -> Iterator[Cohort]:
    with (
        tempfile.TemporaryDirectory() as name,
        host(Path(name), count, models, watch_seconds=2, under=["setsid"]) as server,
    ):
        yield server


def _measure_load(model: str, inputs: object, count: int, connections: int) -> None:
    with _started(count) as server, tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(SCRIPT % (model, json.dumps({"inputs": inputs})))
        script.flush()
        command = ["wrk", "-t1", f"-c{connections}", "-s", script.name, server.url]
        subprocess.run([*command, "-d2s"], check=True, capture_output=True)
        before, began = cpu_seconds(server.process.pid), time.perf_counter()
        own = resource.getrusage(resource.RUSAGE_CHILDREN)
        said = subprocess.run(
            [*command, f"-d{SECONDS}s"], check=True, capture_output=True, text=True
        ).stdout
        seconds = time.perf_counter() - began
        used = cpu_seconds(server.process.pid) - before
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        load = after.ru_utime + after.ru_stime - own.ru_utime - own.ru_stime
    asked = int(said.partition(" requests in ")[0].split()[-1])
    errors = [line.strip() for line in said.splitlines() if "Socket" in line or "Non-2xx" in line]
    print(
        f"{model:7} workers {count}: {asked / seconds:8,.0f}/s  "
        f"server {used / seconds:.2f} cores, {used / asked * 1e6:.1f} µs each  "
        f"load generator {load / seconds:.2f} cores  {errors or ''}"
    )


def _measure_memory(count: int, *, external: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        _save_wide(Path(name) / "wide" / "1" / "model.onnx", external=external)
        with _started(count, Path(name)) as server:
            time.sleep(3)
            pids = [server.process.pid, *workers_of(server)]
            shares = [_memory(pid, "Pss") / 2**20 for pid in pids]
            sizes = [_memory(pid, "Rss") / 2**20 for pid in pids]
    kind = "weights beside" if external else "weights within"
    each = " ".join(f"{one:.0f}" for one in shares)
    total = f"{sum(shares):.0f} MiB in all (PSS: {each}; RSS: {sum(sizes):.0f})"
    print(f"{kind}, workers {count}: {total}")


def _memory(pid: int, kind: str) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(f"{kind}:"):
            return int(line.split()[1]) * 1024
    return 0


def _save_wide(path: Path, *, external: bool) -> None:
    """A product with a matrix of 64 MiB."""
    weights = np.random.default_rng(0).standard_normal((4096, 4096)).astype("f4")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "wide",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4096])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4096])],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    path.parent.mkdir(parents=True)
    onnx.save(model, path, save_as_external_data=external, location="weights.bin")


if __name__ == "__main__":
    main()
