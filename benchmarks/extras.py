"""Measurements beyond one load: open loop, memory over a million requests, a slow neighbour."""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import usage
from benchmarks.load import write_calls, wrk
from benchmarks.measure import Found, Say, model_folder, start_checked
from benchmarks.servers import BUILD, COHORT, ROOT, Server, launch
from benchmarks.workloads import WORKLOADS, Inputs, Workload, ask_cohort

BY_NAME = {one.name: one for one in WORKLOADS}
SHARES = (0.3, 0.6, 0.9)


def open_loop(
    servers: Sequence[Server], found: Found, say: Say, *, rounds: int, seconds: float
) -> None:
    """Send 30, 60 and 90 % of each server's rate at 64 connections just before, in turns."""
    workload = BY_NAME["mlp"]
    started = start_checked(servers, workload, found, say)
    try:
        for number in range(rounds):
            for running in started:
                running.resume()
                say(f"open loop: round {number + 1}/{rounds}, {running.server.name}, capacity")
                capacity = wrk(running, 64, seconds).rate
                for share in SHARES:
                    say(
                        f"open loop: round {number + 1}/{rounds}, "
                        f"{running.server.name}, {share:.0%}"
                    )
                    running.settle()
                    used = usage.cpu_seconds(running.process.pid)
                    heard = arrive(
                        running.port, running.log.parent / "call-0.http", capacity * share, seconds
                    )
                    used = usage.cpu_seconds(running.process.pid) - used
                    found.open.append({
                        "server": running.server.name, "share": share, "capacity": capacity,
                        "round": number, "cpu_us": used / (capacity * share * seconds) * 1e6,
                        **heard,
                    })  # fmt: skip
                running.pause()
    finally:
        for running in started:
            running.stop()


def arrive(port: int, call: Path, rate: float, seconds: float) -> dict[str, float]:
    """Run the generator in a separate process."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.openloop", str(port), str(call), str(rate),
         str(seconds)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"the generator failed: {done.stderr[-300:]}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def growth(found: Found, say: Say, *, requests: int = 1_000_000) -> None:
    """Resident memory of Cohort after 10,000 requests for the small model, and after a million."""
    workload = BY_NAME["mlp"]
    running = launch(COHORT, workload, model_folder(workload))
    try:
        running.wait()
        write_calls(running, running.log.parent)
        asked, marks = 0, {}
        for mark in (10_000, requests):
            while asked < mark:
                say(f"memory: {asked:,} of {requests:,} requests")
                asked += wrk(running, 64, 5 if asked else 1).requests
            running.settle()
            marks[mark] = usage.memory_mb(running.process.pid, "VmRSS")
            found.growth[f"asked_by_{mark}"] = asked
        found.growth.update(
            {"mb_after_10000": marks[10_000], "mb_after_many": marks[requests], "many": asked,
             "ratio": marks[requests] / marks[10_000]}
        )  # fmt: skip
    finally:
        running.stop()


def neighbour(found: Found, say: Say, *, rounds: int, seconds: float, rate: float = 300) -> None:
    """The small model's p99 at a steady rate, alone and while 16 callers saturate ResNet-50."""
    folder = BUILD / "run" / "neighbours"
    shutil.rmtree(folder, ignore_errors=True)
    fast, slow = BY_NAME["mlp"], BY_NAME["resnet50-binary"]
    for workload in (fast, slow):
        source = model_folder(workload) / workload.model
        shutil.copytree(source, folder / workload.model)
    named = replace(COHORT, ask=_ask_named)
    running = launch(named, fast, folder)
    try:
        running.wait()
        write_calls(running, running.log.parent)
        beside = replace(running, workload=slow, log=running.log.parent / "slow" / "log.txt")
        calls = write_calls(beside, beside.log.parent)
        alone: list[dict[str, float]] = []
        pressed: list[dict[str, float]] = []
        served: list[float] = []
        for number in range(rounds):
            say(f"neighbour: round {number + 1}/{rounds}, alone")
            call = running.log.parent / "call-0.http"
            alone.append(arrive(running.port, call, rate, seconds))
            say(f"neighbour: round {number + 1}/{rounds}, beside ResNet-50")
            process = subprocess.Popen(
                ["wrk", "-t1", "-c16", f"-d{round(seconds) + 2}s", "--timeout", "60s", "-s",
                 str(calls.parent / "load.lua"), running.url, "--", str(calls)],
                stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            pressed.append(arrive(running.port, call, rate, seconds))
            out = process.communicate()[0]
            line = next(one for one in out.splitlines() if one.startswith("RESULT "))
            heard = json.loads(line.removeprefix("RESULT "))
            served.append(heard["requests"] / heard["seconds"])
            running.settle()
        for name, of in (("alone", alone), ("beside", pressed)):
            for quantity in ("p50", "p99", "lag_p99"):
                found.neighbour[f"{name}_{quantity}"] = statistics.median(
                    one[quantity] for one in of
                )
        found.neighbour["slow_rate"] = statistics.median(served)
        found.neighbour["ratio"] = found.neighbour["beside_p99"] / found.neighbour["alone_p99"]
    finally:
        running.stop()


def _ask_named(workload: Workload, inputs: Inputs) -> Any:
    """Two models are served: the path names the one."""
    call = ask_cohort(workload, inputs)
    if call.path == "/predict":
        return replace(call, path=f"/models/{workload.model}/predict")
    return call
