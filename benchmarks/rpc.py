"""Compare the cost of calls over gRPC with Triton's.

    python -m benchmarks.rpc                       Cohort and Triton, in turn
    python -m benchmarks.rpc --servers cohort --only stream
    python -m benchmarks.rpc --runs 3 --write      three times; writes results/grpc.md

Triton is that of the `nvidia-pytriton` wheel, which runs the model in a separate Python process
(benchmarks/README.md). Its figure is given with that process, and without it for the server in C++
alone. Rounds in which others used more than FOREIGN_CORES are dropped and counted.
"""

from __future__ import annotations

import os

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import itertools
import json
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import numpy as np
import rich_click as click
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import report, usage
from benchmarks.lane import FOREIGN_CORES
from benchmarks.measure import model_folder
from benchmarks.rpc_client import Plan
from benchmarks.servers import ROOT, SERVERS, Running, launch
from benchmarks.workloads import Workload
from cohort.rpc.inference_pb2 import ModelInferRequest, ModelInferResponse

RESULT = Path(__file__).parent / "results" / "grpc.md"
METHOD = "/inference.GRPCInferenceService/ModelInfer"

CALLING = """
import sys, threading, time
import grpc
port, file, threads, seconds = sys.argv[1:]
body, counts, over = open(file, "rb").read(), [], threading.Event()
options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1),
           ("grpc.use_local_subchannel_pool", 1)]
def work():
    with grpc.insecure_channel(f"127.0.0.1:{port}", options) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        call(body)
        ready.wait()
        count = 0
        while not over.is_set():
            call(body)
            count += 1
        counts.append(count)
ready = threading.Barrier(int(threads) + 1)
workers = [threading.Thread(target=work) for _ in range(int(threads))]
for one in workers: one.start()
ready.wait()
print("WARM", flush=True)
sys.stdin.readline()
begun, before = time.monotonic(), 0
time.sleep(float(seconds))
over.set()
for one in workers: one.join()
print("RESULT", '{"requests": %d, "seconds": %f}' % (sum(counts), time.monotonic() - begun))
"""


@dataclass(frozen=True)
class Kind:
    """A kind of call; who calls: `h2load`, `client` (benchmarks.rpc_client) or `grpcio`."""

    name: str
    caller: str
    model: str = "mlp"
    method: str = "ModelInfer"
    connections: int = 64
    depth: int = 1
    traced: bool = False
    id: str = ""


KINDS = (
    Kind("unary", "h2load"),
    Kind("unary, with an id", "h2load", id="a-request-1"),
    Kind("unary, 8 connections of 8 calls", "h2load", connections=8, depth=8),
    Kind("unary, one connection of 64 calls", "h2load", connections=1, depth=64),
    Kind("unary, one call at a time", "h2load", connections=1),
    Kind("unary, as grpc-go encodes it", "client"),
    Kind("unary, with deadlines and traces", "client", traced=True),
    Kind("stream, 64 of one message", "client", method="ModelStreamInfer"),
    Kind("stream, 64 of eight messages", "client", method="ModelStreamInfer", depth=8),
    Kind("stream, one of 32 messages", "client", method="ModelStreamInfer", connections=1,
         depth=32),
    Kind("600 KB in and out, 4 callers", "grpcio", model="echo", connections=4),
)  # fmt: skip


@dataclass
class Figures:
    """The results of a kind with a server; microseconds of processor time per request."""

    cpu_us: list[float] = field(default_factory=list)
    served_us: list[float] = field(default_factory=list)  # without Triton's Python process
    rates: list[float] = field(default_factory=list)


def message_of(kind: Kind) -> bytes:
    """Return a request of one row, or of 600 KB."""
    shape = (1, 150_000) if kind.model == "echo" else (1, 10)
    row = np.random.default_rng(1).standard_normal(shape, dtype=np.float32)
    request = ModelInferRequest(model_name=kind.model, id=kind.id)
    request.inputs.add(name="x", datatype="FP32", shape=shape)
    request.raw_input_contents.append(row.tobytes())
    return request.SerializeToString()


def check(running: Running, message: bytes) -> bytes:
    """Return the answer of a server to a request. Raises where it gives none."""
    with grpc.insecure_channel(f"127.0.0.1:{running.rpc_port}") as channel:
        answer: bytes = channel.unary_unary(METHOD)(message, timeout=30, wait_for_ready=True)
    return b"".join(ModelInferResponse.FromString(answer).raw_output_contents)


def asked(kind: Kind, running: Running, message: bytes, seconds: int) -> tuple[list[str], bool]:
    """Return the command that calls, and True if it reports when it is warm."""
    file = running.log.parent / "message"
    port = running.rpc_port
    if kind.caller == "h2load":
        file.write_bytes(b"\0" + len(message).to_bytes(4, "big") + message)
        return [
            "h2load", "-c", str(kind.connections), "-m", str(kind.depth), "-D", str(seconds),
            "-d", str(file), "-H", "content-type: application/grpc", "-H", "te: trailers",
            f"http://127.0.0.1:{port}{METHOD}",
        ], False  # fmt: skip
    file.write_bytes(message)
    if kind.caller == "grpcio":
        arguments = [str(port), str(file), str(kind.connections), str(seconds)]
        return [sys.executable, "-c", CALLING, *arguments], True
    plan = Plan(
        port, str(file), kind.method, kind.connections, kind.depth, seconds, traced=kind.traced
    )
    return [sys.executable, "-m", "benchmarks.rpc_client", plan.text()], True


@dataclass(frozen=True)
class Round:
    """The results of a round; `foreign` are the cores that others used."""

    requests: float
    seconds: float
    cpu: float
    served: float
    foreign: float


def one_round(kind: Kind, running: Running, message: bytes, seconds: int) -> Round:
    """Call for some seconds."""
    command, warms = asked(kind, running, message, seconds)
    children = sum(os.times()[2:4])
    with subprocess.Popen(
        command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("no pipes")
        if warms and process.stdout.readline() != "WARM\n":
            raise RuntimeError(f"{kind.name}: the caller failed")
        asking = usage.cpu_seconds(process.pid) if warms else 0.0
        used, served = usage.cpu_seconds(running.process.pid), served_seconds(running)
        busy, began = usage.busy_seconds(), time.monotonic()
        told, _ = process.communicate("\n")
    length = time.monotonic() - began
    used = usage.cpu_seconds(running.process.pid) - used
    served = served_seconds(running) - served
    asking = sum(os.times()[2:4]) - children - asking
    foreign = (usage.busy_seconds() - busy - used - asking) / length
    if kind.caller == "h2load":
        done = re.search(r"(\d+) total, .* (\d+) succeeded, (\d+) failed", told)
        counts = [int(one) for one in done.groups()] if done else [0, 0, 1]
        if counts[2]:
            raise RuntimeError(f"{kind.name}: {told}")
        heard = {"requests": counts[1], "seconds": seconds}
    else:
        heard = json.loads(told.rpartition("RESULT ")[2] or "{}")
    if not heard.get("requests"):
        raise RuntimeError(f"{kind.name}: no answers")
    return Round(heard["requests"], heard["seconds"], used, served, foreign)


def served_seconds(running: Running) -> float:
    """Processor time of the process that was started, without its children."""
    fields = Path(f"/proc/{running.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * usage.TICK


Found = dict[tuple[str, str], Figures]


@dataclass
class Left:
    """Measurements that are not in the figures."""

    dropped: int = 0  # because others used the machine
    crashed: dict[str, int] = field(default_factory=dict)  # by the ended server, which restarted


def measure(
    chosen: Sequence[Kind], names: Sequence[str], found: Found, left: Left, *, rounds: int,
    seconds: int, keep_all: bool,
) -> None:  # fmt: skip
    """Measure with a server of each name, in turn."""
    for model in dict.fromkeys(kind.model for kind in chosen):
        kinds = [kind for kind in chosen if kind.model == model]
        servers: dict[str, Running] = {}
        try:
            for _ in track(range(rounds), f"{model}: rounds"):
                for kind, name in itertools.product(kinds, names):
                    if name not in servers:
                        servers[name] = started(name, kind)
                    running = servers[name]
                    running.resume()
                    try:
                        heard = one_round(kind, running, message_of(kind), seconds)
                    except RuntimeError:
                        if running.process.poll() is None:
                            raise
                        left.crashed[name] = left.crashed.get(name, 0) + 1
                        servers.pop(name).stop()
                        continue
                    running.settle()
                    running.pause()
                    if heard.foreign > FOREIGN_CORES and not keep_all:
                        left.dropped += 1
                        continue
                    figures = found[kind.name, name]
                    figures.cpu_us.append(heard.cpu / heard.requests * 1e6)
                    figures.served_us.append(heard.served / heard.requests * 1e6)
                    figures.rates.append(heard.requests / heard.seconds)
        finally:
            for running in servers.values():
                running.stop()


def started(name: str, kind: Kind) -> Running:
    """Return a server that gives the right answers. Raises RuntimeError where they are wrong."""
    workload = Workload(kind.model, kind.model)
    running = launch(SERVERS[name], workload, model_folder(workload))
    running.wait()
    message = message_of(kind)
    sent = b"".join(ModelInferRequest.FromString(message).raw_input_contents)
    if check(running, message) != sent and kind.model == "echo":
        running.stop()
        raise RuntimeError(f"{name} answers something else")
    return running


COLUMNS = ("call", "server", "CPU, µs", "range", "its server alone", "requests/s", "range ")


def cells(found: Mapping[tuple[str, str], Figures]) -> Iterator[list[str]]:
    """Yield the rows of the table, as COLUMNS names them."""
    for (kind, server), figures in found.items():
        if not figures.cpu_us:
            yield [kind, server, "no round is left", *[""] * (len(COLUMNS) - 3)]
            continue
        yield [
            kind,
            server,
            f"{statistics.median(figures.cpu_us):.1f}",
            f"{min(figures.cpu_us):.1f} to {max(figures.cpu_us):.1f}",
            f"{statistics.median(figures.served_us):.1f}",
            f"{statistics.median(figures.rates):,.0f}",
            f"{min(figures.rates):,.0f} to {max(figures.rates):,.0f}",
        ]


def write(found: Mapping[tuple[str, str], Figures], title: str) -> None:
    """Write results/grpc.md."""
    says = (
        "Processor time per request of all the server's processes; *its server alone* leaves out "
        "the Python process in which Triton's wheel runs the model.\nThe callers are on the same "
        "machine: requests/s of the cheap calls are bounded by them as well."
    )
    report.write_page(
        RESULT, "Cost of calls over gRPC", says, "python -m benchmarks.rpc --write",
        title, report.markdown(COLUMNS, list(cells(found))),
    )  # fmt: skip


@click.command()
@click.option("--servers", default="cohort,triton-python", show_default=True)
@click.option("--only", default="", help="Kinds whose names this expression finds.")
@click.option("--rounds", default=3, show_default=True, help="Measurements of each kind.")
@click.option("--seconds", default=2, show_default=True, help="Length of a round.")
@click.option("--keep-all", is_flag=True, help="Keep rounds in which others used the machine.")
@click.option("--runs", default=1, show_default=True, help="Servers, one after the other.")
@click.option("--write", "writes", is_flag=True, help="Write results/grpc.md.")
def main(
    servers: str, only: str, rounds: int, seconds: int, keep_all: bool, runs: int, writes: bool
) -> None:
    """Measure what calls over gRPC cost."""
    if not shutil.which("h2load"):
        raise click.ClickException("h2load is not installed: apt-get install nghttp2-client")
    names = servers.split(",")
    chosen = [kind for kind in KINDS if re.search(only, kind.name)]
    found = {(kind.name, name): Figures() for kind in chosen for name in names}
    left = Left()
    for _ in range(runs):
        measure(chosen, names, found, left, rounds=rounds, seconds=seconds, keep_all=keep_all)
    title = (
        f"{runs} runs of {rounds} rounds of {seconds} s each; "
        f"{left.dropped} measurements dropped, because others used the machine"
    )
    title += "".join(f"; {name} crashed {count} times" for name, count in left.crashed.items())
    table = Table(*COLUMNS, title=title)
    for row in cells(found):
        table.add_row(*row)
    Console(width=120).print(table)
    if writes:
        write(found, title)


if __name__ == "__main__":
    main()
