"""Measure the server's start, and its use while it idles: `python -m benchmarks.starts`.

Each round starts `cohort serve` again, as a separate process, with a cache that an earlier start
has filled, and requests `/predict` until it answers. Then no client sends anything.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.servers import source_path
from benchmarks.usage import cpu_seconds, processes

ROOT = Path(__file__).parents[1]
QUESTION = {"model": "iris", "inputs": {"features": [[5.1, 3.5, 1.4, 0.2]]}}
ASK_SECONDS = 0.005
START_SECONDS = 300.0
SETTLE_SECONDS = 10.0
"""After the first answer: by then the slow parts of a start are over."""


def main() -> None:
    """Measure, and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--idle", type=float, default=20.0, help="Seconds; 0: the start alone.")
    parser.add_argument("--models", type=int, nargs="*", default=[0, 1, 1000], help="0: bundled.")
    parser.add_argument("--checkouts", type=Path, nargs="*", default=[ROOT], help="In turn.")
    chosen = parser.parse_args()
    for count in chosen.models:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            models = ROOT / "models" if count == 0 else _copies(folder / "models", count)
            found: dict[Path, list[dict[str, float]]] = {one: [] for one in chosen.checkouts}
            for number in range(-1, chosen.rounds):
                for checkout in chosen.checkouts:
                    figures = _start(
                        checkout, models, folder, chosen.idle if number >= 0 else 0, number < 0
                    )
                    if number >= 0:
                        found[checkout].append(figures)
            for checkout, rounds in found.items():
                _say(f"{checkout.name}, {count or 'bundled'} models", rounds)


def _copies(folder: Path, count: int) -> Path:
    """`count` models, each a link to the same small file; the first is called iris."""
    source = next((ROOT / "models" / "iris" / "1").glob("model.onnx")).resolve()
    for number in range(count):
        version = folder / (f"iris-{number}" if number else "iris") / "1"
        version.mkdir(parents=True)
        os.link(_linkable(source, folder), version / "model.onnx")
    return folder


def _linkable(source: Path, folder: Path) -> Path:
    """Return a copy of `source` on the file system of `folder`, where a hard link can be made."""
    copy = folder.parent / "model.onnx"
    if not copy.exists():
        shutil.copy(source, copy)
    return copy


def _start(
    checkout: Path, models: Path, folder: Path, idle: float, filling: bool
) -> dict[str, float]:
    """Start the server once; return seconds, MiB and percent of a core by name.

    filling: True if this start fills the cache: it gets time for that.
    """
    port = _free_port()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COHORT_")}
    environment = {
        **kept,
        "PYTHONPATH": source_path(checkout),
        "COHORT_MODELS": str(models),
        "COHORT_PORT": str(port),
        "COHORT_GRPC_PORT": str(_free_port()),
        "COHORT_CACHE": str(folder / checkout.name / "cache"),
        "COHORT_STATE": str(folder / checkout.name / "state"),
        "COHORT_DRAIN_NOTICE_SECONDS": "0",
        "ORT_DISABLE_TELEMETRY": "1",
    }
    began = time.perf_counter()
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "cohort", "serve"], cwd=checkout, env=environment, stderr=log,
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    try:
        _until_answered(process, port, "POST", "/predict", json.dumps(QUESTION))
        figures = {"first answer s": time.perf_counter() - began}
        figures["CPU to it s"] = cpu_seconds(process.pid)
        _until_answered(process, port, "GET", "/health/ready", "")
        figures["ready s"] = time.perf_counter() - began
        if filling:
            _until_idle(process)
        if idle:
            time.sleep(SETTLE_SECONDS)
            figures["all models s"] = _until_idle(process) - began
            used = cpu_seconds(process.pid)
            time.sleep(idle)
            figures["idle CPU %"] = (cpu_seconds(process.pid) - used) / idle * 100
            for kind in ("Rss", "Pss", "Private"):
                figures[f"{kind} MiB"] = _memory(process.pid, kind)
            figures["Rss of the server MiB"] = max(
                _rollup(one, "Rss") for one in processes(process.pid)
            )
        return figures
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _until_idle(process: subprocess.Popen[bytes]) -> float:
    """Wait until nothing is loaded or measured, and return the time."""
    since, used = time.perf_counter(), cpu_seconds(process.pid)
    while True:
        time.sleep(2)
        now, before = cpu_seconds(process.pid), used
        if now - before < 0.3 or time.perf_counter() - since > START_SECONDS:
            return time.perf_counter()
        used = now


def _until_answered(
    process: subprocess.Popen[bytes], port: int, method: str, path: str, body: str
) -> None:
    until = time.perf_counter() + START_SECONDS
    while time.perf_counter() < until:
        if process.poll() is not None:
            raise SystemExit(f"the server ended with {process.returncode}")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=START_SECONDS)
        with suppress(OSError, http.client.HTTPException):
            connection.request(method, path, body or None, {"content-type": "application/json"})
            if connection.getresponse().status == http.client.OK:
                return
        connection.close()
        time.sleep(ASK_SECONDS)
    raise SystemExit(f"{path} was not answered within {START_SECONDS:g} s")


def _memory(session: int, kind: str) -> float:
    return sum(_rollup(one, kind) for one in processes(session))


def _rollup(process: Path, kind: str) -> float:
    names = {"Private_Clean", "Private_Dirty"} if kind == "Private" else {kind}
    lines = (process / "smaps_rollup").read_text().splitlines()[1:]
    return sum(int(line.split()[1]) for line in lines if line.split(":")[0] in names) / 1024


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def _say(title: str, rounds: Sequence[Mapping[str, Any]]) -> None:
    print(f"{title}: min-median-max of {len(rounds)}")
    for name in rounds[0] if rounds else ():
        values = sorted(one[name] for one in rounds)
        middle = statistics.median(values)
        print(f"  {name:24} {values[0]:8.2f} {middle:8.2f} {values[-1]:8.2f}", flush=True)


if __name__ == "__main__":
    main()
