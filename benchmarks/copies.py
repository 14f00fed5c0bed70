"""Count how often a 600 KB binary body is copied in Python before the run.

Cohort serves ResNet-50 under memray, which records every allocation with its Python stack, while
`REQUESTS` bodies of 602,112 bytes come one by one. The number of writes of the payload is the bytes
of all allocations of 16 KiB and more outside `session.run`, divided by the bytes sent. It is given
by the line that made them. The first time is the arrival, uvloop's read from the socket (its frame
is the event loop's own, `asyncio/runners.py`); each other is a copy. What loading allocates is
measured by a run without requests and taken off.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from benchmarks.measure import Found, Say, model_folder
from benchmarks.servers import BUILD, COHORT, ROOT, Running, Start, launch
from benchmarks.workloads import WORKLOADS, Workload

REQUESTS = 40
LEAST = 16 * 1024
MEMRAY = BUILD / "memray"

# Read in a separate process, where memray is importable.
READ = """
import collections, json, sys
import memray
sums = collections.Counter()
for one in memray.FileReader(sys.argv[1]).get_allocation_records():
    if one.size < int(sys.argv[2]):
        continue
    try:
        stack = one.stack_trace()
    except NotImplementedError:
        continue
    if not stack:
        continue
    files = [frame[1].replace("\\\\", "/") for frame in stack]
    if any(file.endswith("onnxruntime_inference_collection.py") for file in files):
        continue
    name, file, line = stack[0]
    sums[f"{'/'.join(file.split('/')[-3:])}:{line} {name}"] += one.size
print(json.dumps(sums))
"""


def count(found: Found, say: Say) -> None:
    """Count, by line of code. Raises RuntimeError where memray cannot be had."""
    workload = next(one for one in WORKLOADS if one.name == "resnet50-binary")
    if not MEMRAY.exists():
        say("copies: installing memray")
        uv = shutil.which("uv") or str(ROOT / ".tools/bin/uv")
        done = subprocess.run(
            [uv, "pip", "install", "-q", "--python", sys.executable, "--target", str(MEMRAY),
             "memray==1.19.*"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"memray is not installed: {done.stderr[-300:]}")
    say("copies: tracing without requests")
    idle = _trace(workload, 0)
    say(f"copies: tracing {REQUESTS} requests")
    busy = _trace(workload, REQUESTS)
    payload = sum(array.nbytes for array in workload.requests()[0].values()) * REQUESTS
    sites = {
        site: round((size - idle.get(site, 0)) / payload, 2)
        for site, size in busy.items()
        if (size - idle.get(site, 0)) / payload > 0.1 and "importlib" not in site
    }
    arrival = sum(share for site, share in sites.items() if "asyncio/runners.py" in site)
    found.copies = {
        "sites": dict(sorted(sites.items(), key=lambda one: -one[1])),
        "copies": round(sum(sites.values()) - arrival, 2),
        "arrival": round(arrival, 2),
        "requests": REQUESTS,
    }


def _trace(workload: Workload, requests: int) -> dict[str, int]:
    record = BUILD / "run" / f"memray-{requests}.bin"
    record.unlink(missing_ok=True)

    def start(of: Workload, models: Path, port: int, folder: Path) -> Start:
        usual = COHORT.start(of, models, port, folder)
        command = [sys.executable, "-m", "memray", "run", "-q", "-o", str(record), "-m", "cohort",
                   "serve"]  # fmt: skip
        return Start(command, {**usual.environment, "PYTHONPATH": _path()})

    running = launch(replace(COHORT, start=start), workload, model_folder(workload))
    try:
        running.wait()
        _ask(running, requests)
    finally:
        running.stop()
    done = subprocess.run(
        [sys.executable, "-c", READ, str(record), str(LEAST)],
        env={**os.environ, "PYTHONPATH": _path()}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"memray's record cannot be read: {done.stderr[-300:]}")
    sums: dict[str, Any] = json.loads(done.stdout)
    return sums


def _ask(running: Running, requests: int) -> None:
    calls = [running.server.ask(running.workload, one) for one in running.workload.requests()]
    with httpx.Client() as client:
        for number in range(requests):
            call = calls[number % len(calls)]
            answer = client.post(
                running.url + call.path, content=call.body, headers=dict(call.headers), timeout=60
            )
            if answer.status_code != 200:
                raise RuntimeError(f"answered {answer.status_code}")


def _path() -> str:
    return os.pathsep.join([str(MEMRAY), str(ROOT / "app")])
