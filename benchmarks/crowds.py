"""Measure how throughput holds when thousands of callers are connected.

Commands::

    python -m benchmarks.crowds                       closed loop, 64 to 10,000 callers
    python -m benchmarks.crowds --servers cohort,bun --rounds 5
    python -m benchmarks.crowds --mode overload       3 times what it can do arrives
    python -m benchmarks.crowds --mode load           20 to 100 % of it arrives

Closed loop: wrk with a number of connections; the seconds in which they open do not count. `floor`
is a protocol on bare uvloop that answers a constant: the cost of the connections for the kernel and
wrk. In the other modes requests arrive by a Poisson process whether or not earlier ones are
answered. Each has ROWS rows, so that the sending process has time to spare. A request waits for a
connection if all are taken. Capacity is the rate of wrk with 64 connections just before and after.
Rounds in which others used more than FOREIGN_CORES are dropped, counted, and made up for while
there are no more than twice as many rounds.
"""

from __future__ import annotations

import os

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import gc
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import rich_click as click
from rich.console import Console
from rich.table import Table

from benchmarks import load, overload, usage
from benchmarks.lane import FOREIGN_CORES
from benchmarks.measure import Found, model_folder, start_checked
from benchmarks.servers import FLOOR, ROOT, SERVERS, Running, Start, launch
from benchmarks.workloads import Inputs, Workload

CROWDS = (64, 1000, 5000, 10_000)
SHARES = (0.2, 0.4, 0.6, 0.8, 0.9, 1.0)
ROWS = 64
OPENING = 2.0
"""Seconds of a round of wrk that do not count: all connections are opened, and answered once."""

SCRIPT = """
local calls, turn, began = {}, 0, os.time()
local threads = {}
sent = {}
for second = 1, 60 do sent[second] = 0 end
function setup(thread) threads[#threads + 1] = thread end
function init(args)
  local list = assert(io.open(args[1], "r"))
  for line in list:lines() do
    local file = assert(io.open(line, "rb"))
    calls[#calls + 1] = file:read("*a")
    file:close()
  end
end
function request()
  local second = os.time() - began + 1
  sent[second] = sent[second] + 1
  turn = turn % #calls + 1
  return calls[turn]
end
function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    '\\nRESULT {"sent":[%s],"p50":%.6f,"p99":%.6f,"worst":%.6f,"refused":%d,"errors":%d}\\n',
    table.concat(threads[1]:get("sent"), ","),
    latency:percentile(50) / 1e6, latency:percentile(99) / 1e6, latency.max / 1e6,
    e.status, e.connect + e.read + e.write + e.timeout))
end
"""


@dataclass(frozen=True)
class ManyRows(Workload):
    """The MLP, asked for `rows` rows at once."""

    rows: int = 1

    def requests(self) -> list[Inputs]:
        random = np.random.default_rng(1)
        shape = (self.rows, 10)
        return [{"x": random.standard_normal(shape).round(3).astype("float32")} for _ in range(16)]


@dataclass(frozen=True)
class Heard:
    """The results of a round: answers a second, seconds, microseconds of the server per answer."""

    rate: float
    p50: float
    p99: float
    worst: float
    cpu_us: float
    refused: int
    foreign: float


def closed_loop(running: Running, connections: int, seconds: float) -> Heard:
    """Run a number of callers, each of which sends again once answered."""
    folder = running.log.parent
    (folder / "crowd.lua").write_text(SCRIPT)
    callers = subprocess.Popen(
        ["wrk", "-t1", f"-c{connections}", f"-d{round(OPENING + seconds + 1)}s", "--timeout", "60s",
         "-s", str(folder / "crowd.lua"), running.url, "--", str(folder / "calls.txt")],
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    time.sleep(OPENING)
    used, foreign = watched(running, callers, seconds)
    output, _ = callers.communicate()
    found = json.loads(output.partition("RESULT ")[2])
    if found["errors"]:
        raise RuntimeError(f"{connections} connections: {found}")
    whole = [count for count in found["sent"] if count]
    rate = statistics.mean(whole[round(OPENING) : -1])  # the last second is none
    return Heard(
        rate, found["p50"], found["p99"], found["worst"], used / seconds / rate * 1e6,
        found["refused"], foreign,
    )  # fmt: skip


def watched(
    running: Running, callers: subprocess.Popen[str], seconds: float
) -> tuple[float, float]:
    """Wait; return the server's processor seconds in that time, and the cores others used."""

    def now() -> tuple[float, float, float]:
        used = usage.cpu_seconds(running.process.pid)
        return used, usage.cpu_seconds(callers.pid), usage.busy_seconds()

    before = now()
    time.sleep(seconds)
    server, asking, busy = (b - a for a, b in zip(before, now(), strict=True))
    return server, (busy - server - asking) / seconds


def arriving(running: Running, connections: int, seconds: float, rate: float) -> Heard:
    """`rate` requests a second, whether or not earlier ones are answered."""
    callers = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.crowds", "--callers",
         f"{running.port} {running.log.parent / 'call-0.http'} {rate} {seconds} {connections}"],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert callers.stdout
    callers.stdout.readline()  # connected
    used, foreign = watched(running, callers, seconds)
    output, _ = callers.communicate()
    found = json.loads(output)
    cpu_us = used / max(found["good"], 1) * 1e6
    return Heard(
        found["good"] / seconds, found["p50"], found["p99"], found["worst"], cpu_us,
        found["refused"], foreign,
    )  # fmt: skip


def call(arguments: str) -> None:
    """Act as the callers: print a line once connected, and the results at the end as JSON."""
    port, path, rate, seconds, connections = arguments.split()
    gc.disable()
    took: list[float] = []
    refused = 0
    request = Path(path).read_bytes()
    answers = overload.call(
        int(port), request, rate=float(rate), seconds=float(seconds),
        connections=int(connections), leave=True,
    )  # fmt: skip
    for one in answers:
        if not took and not refused:
            print(flush=True)
        if one.status == 200:
            took.append(one.took)
        else:
            refused += 1
    took.sort()
    at = {name: took[int(share * (len(took) - 1))] if took else 0.0
          for name, share in (("p50", 0.5), ("p99", 0.99), ("worst", 1.0))}  # fmt: skip
    print(json.dumps({**at, "good": len(took), "refused": refused}))


# -- the servers


def _cohort(workload: Workload, models: Path, port: int, folder: Path) -> Start:
    """With room for the crowd: the default is what the limit of open files leaves."""
    began = SERVERS["cohort"].start(workload, models, port, folder)
    return replace(
        began, environment={**began.environment, "COHORT_MAX_CONNECTIONS": str(2 * max(CROWDS))}
    )


OURS = replace(SERVERS["cohort"], start=_cohort)


def started(names: Sequence[str], workload: Workload) -> Iterator[Running]:
    """Start the servers, paused and warm."""
    found = Found()
    for name in names:
        if name == "floor":
            running = launch(FLOOR, workload, model_folder(workload))
            running.wait()
            load.write_calls(running, running.log.parent)
            running.pause()
            yield running
        else:
            server = OURS if name == "cohort" else SERVERS[name]
            yield from start_checked([server], workload, found, print)
    for name, why in found.failed.get(workload.name, {}).items():
        print(f"{name} is left out: {why}")


# -- the modes: rounds in turn


@dataclass
class Row:
    """The results of a server at one place; `shares` are of its best, or of its capacity."""

    server: str
    place: str
    heard: list[Heard] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)


Round = dict[str, Heard]


def crowd(running: Running, connections: Sequence[int], seconds: float) -> tuple[Round, float]:
    """Each number of callers in turn; the best rate of them is what the shares are of."""
    found = {f"{many:,}": closed_loop(running, many, seconds) for many in connections}
    return found, max(one.rate for one in found.values())


def too_much(running: Running, connections: Sequence[int], seconds: float) -> tuple[Round, float]:
    """Send three times the capacity over a number of connections."""
    before = closed_loop(running, 64, seconds)
    found: Round = {"capacity": before}
    for many in connections:
        found[f"{many:,}"] = arriving(running, many, seconds, 3 * before.rate)
        running.settle()
    after = closed_loop(running, 64, seconds)
    return found, (before.rate + after.rate) / 2


def rising(running: Running, connections: Sequence[int], seconds: float) -> tuple[Round, float]:
    """From a fifth of the capacity to all of it, over the first number of connections."""
    capacity = closed_loop(running, 64, seconds).rate
    found: Round = {}
    for share in SHARES:
        found[f"{share:.0%}"] = arriving(running, connections[0], seconds, share * capacity)
        running.settle()
    return found, capacity


MODES = {"closed": crowd, "overload": too_much, "load": rising}


def measure(
    servers: Sequence[Running], mode: str, connections: Sequence[int],
    *, rounds: int, seconds: float, keep_all: bool,
) -> tuple[list[Row], int]:  # fmt: skip
    """Measure all servers in turn, until each has `rounds` undisturbed ones or `2 * rounds` turns.

    Returns what was found, and how many rounds were dropped.
    """
    rows: dict[tuple[str, str], Row] = {}
    counts = dict.fromkeys((running.server.name for running in servers), 0)
    dropped = 0
    for _ in range(2 * rounds):
        for running in servers:
            name = running.server.name
            if counts[name] == rounds:
                continue
            running.resume()
            try:
                found, whole = MODES[mode](running, connections, seconds)
                running.settle()
            finally:
                running.pause()
            foreign = max(heard.foreign for heard in found.values())
            said = ", ".join(f"{place} {heard.rate:,.0f}/s" for place, heard in found.items())
            print(f"{name}: {said}; others used {foreign:.2f} cores", flush=True)
            if foreign > FOREIGN_CORES and not keep_all:
                dropped += 1
                continue
            counts[name] += 1
            for place, heard in found.items():
                row = rows.setdefault((name, place), Row(name, place))
                row.heard.append(heard)
                row.shares.append(heard.rate / whole)
    return list(rows.values()), dropped


def table(rows: Sequence[Row], title: str) -> Table:
    """Return the results as a table: medians, and the range of the shares."""
    made = Table("server", "", "answers/s", "share", "range", "CPU, us", "p50 ms", "p99 ms",
                 "worst ms", "refused", title=title)  # fmt: skip
    for row in rows:

        def middle(name: str, row: Row = row) -> float:
            return statistics.median(getattr(heard, name) for heard in row.heard)

        made.add_row(
            row.server, row.place, f"{middle('rate'):,.0f}", f"{statistics.median(row.shares):.0%}",
            f"{min(row.shares):.0%} to {max(row.shares):.0%}", f"{middle('cpu_us'):.1f}",
            *(f"{middle(name) * 1e3:.1f}" for name in ("p50", "p99", "worst")),
            f"{middle('refused'):.0f}",
        )  # fmt: skip
    return made


def _listed(_: click.Context, __: click.Parameter, value: str) -> list[str]:
    return value.split(",")


@click.command()
@click.option("--mode", type=click.Choice(list(MODES)), default="closed", show_default=True)
@click.option("--servers", default="cohort,floor", show_default=True, callback=_listed)
@click.option("--connections", default=",".join(map(str, CROWDS)), show_default=True,
              callback=_listed, help="With --mode load the first of them alone.")  # fmt: skip
@click.option("--rows", default=0, help="Rows of a request. [1 closed loop, 64 else]")
@click.option("--rounds", default=3, show_default=True)
@click.option("--seconds", default=4.0, show_default=True, help="Seconds of a round that count.")
@click.option("--keep-all", is_flag=True, help="Keep rounds in which others used the machine.")
@click.option("--callers", hidden=True, default="", help="Be the callers.")
def main(
    mode: str, servers: list[str], connections: list[str], rows: int, rounds: int, seconds: float,
    keep_all: bool, callers: str,
) -> None:  # fmt: skip
    """Measure what crowds of callers leave of the throughput."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # also for programs started here
    if callers:
        call(callers)
        return
    if problem := load.missing():
        raise click.ClickException(problem)
    if most < max(map(int, connections)) + 1000:
        raise click.ClickException(f"{most} open files are too few: ulimit -Hn")
    rows = rows or (1 if mode == "closed" else ROWS)
    workload = ManyRows(f"mlp-{rows}-rows", "mlp", rows=rows)
    running = list(started(servers, workload))
    try:
        found, dropped = measure(
            running, mode, [int(one) for one in connections],
            rounds=rounds, seconds=seconds, keep_all=keep_all,
        )  # fmt: skip
    finally:
        for one in running:
            one.stop()
    title = f"{mode}: {rounds} rounds of {seconds:g} s, {dropped} more dropped: others were busy"
    if not found:
        raise click.ClickException("others were busy in every round: wait, or take --keep-all")
    Console(width=140).print(table(found, title))


if __name__ == "__main__":
    main()
