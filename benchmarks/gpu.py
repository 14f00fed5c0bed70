"""Measure the benchmark's models on a GPU: `python -m benchmarks.gpu [--seconds 2]`.

For each model three servers are up at once: on the CPU, on CUDA, and on CUDA with batches of one.
They are asked in turn, by `cohort bench` over HTTP in binary, from as many processes as there are
callers, up to eight. An answer of each is compared with the CPU's. Prints tables in Markdown.

With `--changes`, shows instead how long bare ONNX Runtime takes on CUDA for runs of ResNet-50
whose numbers of rows change. With `--generative`, measures language models instead
(`benchmarks.generative.on_gpu`).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import httpx
import numpy as np
import onnxruntime as ort

from benchmarks import models
from benchmarks.usage import cpu_seconds
from tests.e2e.processes import ROOT, Cohort, cohort
from tests.waiting import wait_until

MAX_CLIENTS = 8
CHANGING = (1, 1, 1, 2, 2, 4, 4, 8, 8, 1, 2, 1, 2, 3, 1, 4, 2, 3, 8, 1, 1)
SHAPES = {"encoder": ["--shape", "input_ids=1,64", "--shape", "attention_mask=1,64"]}
SETUPS = {
    "CPU": "providers: [cpu]\n",
    "CUDA": "providers: [cuda, cpu]\n",
    "CUDA, one at a time": "providers: [cuda, cpu]\n",
}
ONE_AT_A_TIME = "max_batch_size: 1"


@dataclass
class Turns:
    """The results of one server at a number of callers, by turn; `rows` is of a run."""

    rates: list[float] = field(default_factory=list)
    p50: list[float] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    rows: list[float] = field(default_factory=list)
    failed: int = 0


def main() -> None:
    """Measure, and print the tables of each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=["mlp", "encoder", "resnet50"])
    parser.add_argument("--connections", type=int, nargs="*", default=[1, 16, 128])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--changes", action="store_true")
    parser.add_argument("--generative", action="store_true", help="language models instead")
    parser.add_argument("--dry-run", action="store_true", help="with --generative, on the CPU")
    chosen = parser.parse_args()
    if chosen.generative:
        from benchmarks.generative.on_gpu import measure_on_gpu  # noqa: PLC0415 - other packages

        measure_on_gpu(dry=chosen.dry_run)
        return
    if chosen.changes:
        _show_changes()
        return
    for name in chosen.models:
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            servers = {
                setup: stack.enter_context(_served(name, setup, Path(folder) / str(number)))
                for number, setup in enumerate(SETUPS)
            }
            for server in servers.values():
                _wait_for_profile(name, server)
            print(f"\n### {name}\n")
            for line in (*_curves(name, servers), *_differences(name, servers)):
                print(line)
            measured: dict[tuple[int, str], Turns] = {}
            for connections in chosen.connections:
                for _ in range(chosen.rounds):
                    for setup, server in servers.items():
                        turns = measured.setdefault((connections, setup), Turns())
                        _turn(name, server, connections, chosen.seconds, turns)
            for line in _table(measured):
                print(line, flush=True)


def _show_changes() -> None:
    ort.preload_dlls()
    path = models.build("resnet50", ROOT / "build/bench/models")
    images = {rows: np.zeros((rows, 3, 224, 224), np.float32) for rows in set(CHANGING)}
    for search in ("EXHAUSTIVE", "HEURISTIC", "DEFAULT"):
        provider = ("CUDAExecutionProvider", {"cudnn_conv_algo_search": search})
        quiet = ort.SessionOptions()
        quiet.log_severity_level = 4
        session = ort.InferenceSession(path, quiet, providers=[provider])
        taken = []
        for rows in CHANGING:
            began = perf_counter()
            session.run(None, {session.get_inputs()[0].name: images[rows]})
            taken.append(f"{rows}: {(perf_counter() - began) * 1000:.1f}")
        print(f"{search}: ms of a run, by rows: {', '.join(taken)}", flush=True)


def _served(name: str, setup: str, folder: Path) -> Any:
    """Serve the model in a separate session."""
    built = models.build(name, ROOT / "build/bench/models").parents[1]
    target = folder / "models" / name
    target.mkdir(parents=True)
    (target / "1").symlink_to(built / "1")
    config = SETUPS[setup]
    batching = models.CONFIGS.get(name, "")
    if setup.endswith("one at a time"):
        batching += ("  " if batching else "batching:\n  ") + ONE_AT_A_TIME + "\n"
    (target / "config.yaml").write_text(config + batching)
    return cohort(folder / "models", folder, under=["setsid"])


def _wait_for_profile(name: str, server: Cohort) -> None:
    wait_until(lambda: _version(name, server)["profile"]["complete"])


def _version(name: str, server: Cohort) -> Mapping[str, Any]:
    found: Mapping[str, Any] = server.get(f"/models/{name}").json()["versions"][0]
    return found


def _curves(name: str, servers: Mapping[str, Cohort]) -> Iterator[str]:
    """Yield the place of the nodes, and the time of a run by its rows."""
    yield "| server | runs on | nodes | most rows | filled up to | ms of a run, by rows |"
    yield "|---|---|---|---|---|---|"
    for setup, server in servers.items():
        version = _version(name, server)
        chain, profile = version["providers"], version["profile"]
        curve, filled = profile["seconds_by_rows"], profile["filled_rows"] or ""
        nodes = ", ".join(f"{count} {where}" for where, count in chain["nodes"].items())
        times = ", ".join(f"{rows}: {seconds * 1e3:.3g}" for rows, seconds in curve.items())
        most = version["batching"]["max_batch_size"]
        yield f"| {setup} | {chain['active']} | {nodes} | {most} | {filled} | {times} |"
    yield ""


def _differences(name: str, servers: Mapping[str, Cohort]) -> Iterator[str]:
    """How far the first row that `cohort bench` would ask about is from the CPU's answer."""
    drawn = np.random.default_rng(0)
    inputs: dict[str, Any] = {}
    for spec in _version(name, servers["CPU"])["inputs"]:
        shape = [1, *(size if isinstance(size, int) else 64 for size in spec["shape"][1:])]
        if spec["datatype"] == "FP32":
            inputs[spec["name"]] = drawn.random(shape, np.float32).tolist()
        else:
            inputs[spec["name"]] = np.ones(shape, np.int64).tolist()
    answers = {}
    for setup, server in servers.items():
        response = httpx.post(
            f"{server.url}/models/{name}/predict", json={"inputs": inputs}, timeout=60
        )
        outputs = response.raise_for_status().json()["outputs"]
        answers[setup] = np.asarray(next(iter(outputs.values())))
    right = answers["CPU"]
    apart = float(np.abs(answers["CUDA"] - right).max())
    yield f"CUDA's answer to one row is at most {apart:.3g} from the CPU's, which go up to"
    yield f"{float(np.abs(right).max()):.3g}."
    yield ""


def _turn(name: str, server: Cohort, connections: int, seconds: float, turns: Turns) -> None:
    clients = min(MAX_CLIENTS, connections)
    address = server.url.removeprefix("http://")
    command = [
        sys.executable, "-m", "cohort", "bench", address, "--model", name, "--binary", "--json",
        "--seconds", str(seconds), "--warm-up", "0.5", "--connections",
        str(connections // clients), *SHAPES.get(name, []),
    ]  # fmt: skip
    runs, rows = _rows(name, server)
    used = cpu_seconds(server.process.pid)
    running = [
        subprocess.Popen(
            [*command, "--seed", str(seed)], cwd=ROOT, stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for seed in range(clients)
    ]  # fmt: skip
    reports = [json.loads(one.communicate()[0]) for one in running]
    used = cpu_seconds(server.process.pid) - used
    runs_after, rows_after = _rows(name, server)
    turns.rates.append(sum(one["answers_per_second"] for one in reports))
    turns.p50.append(median(one["latency_ms"]["p50"] for one in reports))
    turns.p99.append(max(one["latency_ms"]["p99"] for one in reports))
    turns.rows.append((rows_after - rows) / max(runs_after - runs, 1))
    turns.cpu_us.append(used / max(rows_after - rows, 1) * 1e6)
    turns.failed += sum(sum(one["failed"].values()) for one in reports)


def _rows(name: str, server: Cohort) -> tuple[float, float]:
    """Return the number of runs so far, and of their rows in all."""
    found = {"count": 0.0, "sum": 0.0}
    for line in server.get("/metrics").text.splitlines():
        for kind in found:
            if line.startswith(f'model_batch_rows_{kind}{{model="{name}"'):
                found[kind] += float(line.rsplit(" ", 1)[1])
    return found["count"], found["sum"]


def _table(measured: Mapping[tuple[int, str], Turns]) -> Iterator[str]:
    yield "| callers | server | answers/s | min-max | x CPU | p50 ms | p99 ms | rows | CPU µs |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for (connections, setup), turns in measured.items():
        rate, base = median(turns.rates), median(measured[connections, "CPU"].rates)
        failed = f" ({turns.failed} failed)" if turns.failed else ""
        yield (
            f"| {connections} | {setup}{failed} | {rate:,.0f} "
            f"| {min(turns.rates):,.0f}-{max(turns.rates):,.0f} | {rate / base:.2f} "
            f"| {median(turns.p50):.3g} | {max(turns.p99):.3g} | {median(turns.rows):.1f} "
            f"| {median(turns.cpu_us):,.0f} |"
        )


if __name__ == "__main__":
    main()
