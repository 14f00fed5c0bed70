"""Load by wrk: closed loop on a number of connections, each of which sends again once answered."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import usage
from benchmarks.servers import Running

Heard = dict[str, Any]
"""The callers' results of a round: `requests` in `seconds`, and more."""

# wrk corrects its latencies for coordinated omission by its mean interval; every server alike.
SCRIPT = """
local calls, turn = {}, 0
function init(args)
  local list = assert(io.open(args[1], "r"))
  for line in list:lines() do
    local file = assert(io.open(line, "rb"))
    calls[#calls + 1] = file:read("*a")
    file:close()
  end
end
function request()
  turn = turn % #calls + 1
  return calls[turn]
end
"""

TOLD = """
function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    '\\nRESULT {"requests":%d,"seconds":%.6f,"p50":%.6f,"p99":%.6f,"refused":%d,"errors":%d}\\n',
    summary.requests, summary.duration / 1e6,
    latency:percentile(50) / 1e6, latency:percentile(99) / 1e6,
    e.status, e.connect + e.read + e.write + e.timeout))
end
"""
"""The report of a script at the end of a round."""


@dataclass(frozen=True)
class Round:
    """The results of one round; seconds, and microseconds of processor time per request."""

    rate: float
    p50: float
    p99: float
    cpu_us: float
    refused: int
    errors: int
    requests: int
    hot: float | None = None


def missing() -> str:
    """Return the reason why load is impossible, or ""."""
    return "" if shutil.which("wrk") else "wrk is not installed: apt-get install wrk"


def write_calls(running: Running, folder: Path) -> Path:
    """Write the requests as they go over the wire, and a list of them for the script."""
    calls = []
    for inputs in running.workload.requests():
        call = running.server.ask(running.workload, inputs)
        headers = {"Host": "127.0.0.1", **call.headers, "Content-Length": str(len(call.body))}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        calls.append(f"POST {call.path} HTTP/1.1\r\n{lines}\r\n".encode() + call.body)
    return list_calls(folder, SCRIPT, calls)


def list_calls(folder: Path, script: str, calls: Iterable[bytes]) -> Path:
    """Write a script for wrk, requests, and a list of their files, which the script is given."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "load.lua").write_text(script + TOLD)
    paths = []
    for number, call in enumerate(calls):
        paths.append(folder / f"call-{number}.http")
        paths[-1].write_bytes(call)
    listed = folder / "calls.txt"
    listed.write_text("".join(f"{path}\n" for path in paths))
    return listed


def ask_by_wrk(folder: Path, url: str, connections: int, seconds: float) -> Heard:
    """Send the calls that `list_calls` wrote; return wrk's results.

    Raises RuntimeError where it fails.
    """
    done = subprocess.run(
        ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "--timeout", "60s",
         "-s", str(folder / "load.lua"), url, "--", str(folder / "calls.txt")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    _, _, result = done.stdout.partition("RESULT ")
    if not result:
        raise RuntimeError(f"wrk failed: {(done.stderr or done.stdout)[-300:]}")
    heard: Heard = json.loads(result)
    return heard


def watched(
    running: Running, ask: Callable[[], Heard], beside: Sequence[int] = ()
) -> tuple[Heard, float]:
    """Send; return the results, and how many cores others used.

    Added are `cpu_us` per request, and `hot`, the share that the fast HTTP protocol answered.
    The sessions `beside` the server are not others.
    """

    def now() -> tuple[float, ...]:
        used = usage.cpu_seconds(running.process.pid)
        ours = sum(os.times()[2:4]) + sum(map(usage.cpu_seconds, beside))
        return used, ours, usage.busy_seconds(), time.monotonic()

    hot = running.metric("http_hot_requests_total") or 0
    before = now()
    heard = ask()
    used, ours, busy, length = (b - a for a, b in zip(before, now(), strict=True))
    heard["cpu_us"] = used / heard["requests"] * 1e6
    heard["hot"] = ((running.metric("http_hot_requests_total") or 0) - hot) / heard["requests"]
    return heard, (busy - used - ours) / length


def wrk(running: Running, connections: int, seconds: float) -> Round:
    """One round, and what the server used in it."""
    folder = running.log.parent
    if not (folder / "calls.txt").exists():
        write_calls(running, folder)
    session = running.process.pid
    cohort = running.server.name == "cohort"
    hot = running.metric("http_hot_requests_total") if cohort else None
    before = usage.cpu_seconds(session)
    heard = ask_by_wrk(folder, running.url, connections, seconds)
    used = usage.cpu_seconds(session) - before
    requests = heard["requests"]
    share = None
    if hot is not None and requests:
        # wrk leaves some answers unread at the end, hence at most 1.
        share = min(((running.metric("http_hot_requests_total") or 0) - hot) / requests, 1.0)
    return Round(
        rate=(requests - heard["refused"]) / heard["seconds"],
        p50=heard["p50"],
        p99=heard["p99"],
        cpu_us=used / max(requests, 1) * 1e6,
        refused=heard["refused"],
        errors=heard["errors"],
        requests=requests,
        hot=share,
    )
