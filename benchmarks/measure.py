"""The rounds: every server on a workload, taking turns at each number of connections."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import models, usage
from benchmarks.load import write_calls, wrk
from benchmarks.servers import BUILD, ROOT, Running, Server, launch, model_file
from benchmarks.workloads import Workload

Say = Callable[[str], None]


@dataclass
class Found:
    """All that was measured, as plain values that go into results.json."""

    rounds: list[dict[str, Any]] = field(default_factory=list)
    bare: dict[str, dict[str, Any]] = field(default_factory=dict)
    failed: dict[str, dict[str, str]] = field(default_factory=dict)
    memory_mb: dict[str, dict[str, float]] = field(default_factory=dict)
    open: list[dict[str, Any]] = field(default_factory=list)
    growth: dict[str, float] = field(default_factory=dict)
    neighbour: dict[str, float] = field(default_factory=dict)
    copies: dict[str, Any] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1))


def model_folder(workload: Workload) -> Path:
    """Return the folder with the workload's model alone in it, made if need be."""
    return models.build(workload.model, BUILD / "models").parents[2]


def expected(workload: Workload) -> list[np.ndarray]:
    """Return ONNX Runtime's answers in process: the first output of each request."""
    import onnxruntime as ort  # noqa: PLC0415 - after its telemetry is turned off

    session = ort.InferenceSession(
        model_file(model_folder(workload), workload), providers=["CPUExecutionProvider"]
    )
    return [session.run(None, dict(inputs))[0] for inputs in workload.requests()]


def start_checked(
    servers: Sequence[Server], workload: Workload, found: Found, say: Say
) -> list[Running]:
    """Start the servers, hold their answers against ours, and pause them; the rest is `failed`."""
    started = []
    right = expected(workload)
    for server in servers:
        say(f"{workload.name}: starting {server.name}")
        running = None
        try:
            if workload.binary and not server.binary:
                raise RuntimeError("has no binary form")
            running = launch(server, workload, model_folder(workload))
            running.wait()
            running.check(right)
            write_calls(running, running.log.parent)
        except (RuntimeError, OSError, ValueError, KeyError) as error:
            found.failed.setdefault(workload.name, {})[server.name] = str(error)
            if running:
                running.stop()
        else:
            running.pause()
            started.append(running)
    return started


def matrix(
    workload: Workload, servers: Sequence[Server], found: Found, say: Say,
    *, connections: Sequence[int], rounds: int, seconds: float, bare: bool = True,
) -> None:  # fmt: skip
    """Measure one workload: the servers, and the bare loop among them, in turns."""
    loops = find_loops(workload, say) if bare else {}
    started = start_checked(servers, workload, found, say)
    try:
        for number in range(rounds):
            for name, loop in loops.items():
                say(f"{workload.name}: round {number + 1}/{rounds}, {name}")
                loop.setdefault("rounds", []).append(run_loop(workload, loop, seconds))
            for many in connections:
                for running in started:
                    say(f"{workload.name}: round {number + 1}/{rounds}, {many} connections, "
                        f"{running.server.name}")  # fmt: skip
                    _one(running, many, number, found, seconds)
        for running in started:
            found.memory_mb.setdefault(workload.name, {})[running.server.name] = usage.memory_mb(
                running.process.pid
            )
    finally:
        for running in started:
            running.stop()
        found.bare[workload.name] = loops


def _one(running: Running, many: int, number: int, found: Found, seconds: float) -> None:
    workload, server = running.workload, running.server
    running.resume()
    try:
        if number == 0:
            wrk(running, many, 1)
            running.settle()
        # Long enough for every connection to be answered more than once.
        heavy = 4 if workload.weight > 0.001 else 0
        heard = wrk(running, many, max(seconds, heavy, 2 * many * workload.weight))
        running.settle()
    except (RuntimeError, OSError) as error:
        found.failed.setdefault(workload.name, {})[f"{server.name} at {many}"] = str(error)
        return
    finally:
        running.pause()
    found.rounds.append({
        "workload": workload.name, "server": server.name, "connections": many, "round": number,
        **asdict(heard),
    })  # fmt: skip


def find_loops(workload: Workload, say: Say) -> dict[str, dict[str, Any]]:
    """Return the bare loop's best shape, and its best with one row at a time."""
    say(f"{workload.name}: looking for the bare loop's best batch and threads")
    requests = {
        f"{number}/{name}": array
        for number, inputs in enumerate(workload.requests())
        for name, array in inputs.items()
    }
    path = BUILD / "run" / f"{workload.name}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **requests)  # type: ignore[arg-type]
    tried = sorted(_bare(workload, []), key=lambda one: -one["rate"])
    for one in tried[:3]:  # a moment may mislead; the best few are measured again
        one.update(run_loop(workload, one, 2))
    best = max(tried[:3], key=lambda one: one["rate"])
    single = max((one for one in tried if one["batch"] == 1), key=lambda one: one["rate"])
    shape = ("batch", "instances", "threads")
    return {
        "bare loop, best": {name: best[name] for name in shape},
        "bare loop, one by one": {name: single[name] for name in shape},
    }


def run_loop(workload: Workload, loop: dict[str, Any], seconds: float) -> dict[str, float]:
    shape = [str(loop[name]) for name in ("batch", "instances", "threads")]
    found: dict[str, float] = _bare(workload, shape, seconds)
    return found


def _bare(workload: Workload, shape: Sequence[str], seconds: float = 1) -> Any:
    model = model_file(model_folder(workload), workload)
    requests = BUILD / "run" / f"{workload.name}.npz"
    return json.loads(
        subprocess.run(
            [sys.executable, "-m", "benchmarks.bare", str(model), str(requests), str(seconds),
             *shape],
            cwd=ROOT, check=True, capture_output=True, text=True,
        ).stdout
    )  # fmt: skip
