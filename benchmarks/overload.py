"""Measure a server under overload: goodput, waits, Retry-After and recovery.

    python -m benchmarks.overload [--seconds 60] [--factor 3] [--timeout-ms 0] [--rounds 1]

A model whose runs take about 5 ms on each of two cores is first kept busy by a few callers: that is
its capacity. Then requests arrive at `factor` times this rate whether or not earlier ones are
answered. A separate process on the same cores sends them, at the lowest priority. It prints:

- the goodput (answers with 200) as a share of the capacity, measured just before and just after;
- the times of admitted requests, against the bound of the queue;
- Retry-After, against the waits of requests admitted in the same half second;
- memory, and the processor time of the server and the callers;
- the time after the last arrival until an ordinary request is as fast as before.
  One run lets the callers wait for their answers, one lets all of them leave.

Once here, on two quiet cores (`--seconds 60`): offered 786/s, capacity 261/s before and 272/s
after, goodput 94 %. The p99 of admitted requests was 6.6 s, with a queue's bound of 10 seconds.
Retry-After was 1.09 times the wait (0.95 to 1.28 over the half seconds of the run). Refusals took
2.7 ms; memory was flat at 166 MiB. An ordinary request was as fast as before at once if the callers
left, and after the queue's 5.5 s if they waited. While other work shared the cores the capacity
itself moved by half within a run, and the goodput was 67 to 98 % of it. Before the queue's rate was
measured, Retry-After was 1.9 times the wait. With `--timeout-ms 1500`, 3298 of 4430 answers were
504 before that change, and 196 of 2171 after it.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from time import monotonic, sleep
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks import usage
from benchmarks.openloop import Line
from tests import onnx_models
from tests.e2e.processes import ROOT, Cohort, cohort

NODES = 16
CALLERS = 16
CONNECTIONS = 6000
LOWEST = 19


class Answer(NamedTuple):
    """When a request was due, what it took in seconds, its status, and its Retry-After."""

    due: float
    took: float
    status: int
    retry_after: float


# -- the callers: a separate process


def call(
    port: int, request: bytes, *, rate: float, seconds: float, connections: int, leave: bool
) -> Iterator[Answer]:
    """Send `rate` requests a second, or with 0 one after the other on each connection.

    `leave`: True to close all connections after `seconds`, False to wait for the last answer.
    """
    poll = select.epoll()  # before the sockets: `select` takes numbers below 1024
    lines = [Line(port) for _ in range(connections)]
    by_number = {line.socket.fileno(): line for line in lines}
    for number in by_number:
        poll.register(number, select.EPOLLIN)
    random = Random(0)
    free, waiting = list(lines), deque[float]()
    start = monotonic()
    end = start + seconds
    due = start + random.expovariate(rate) if rate else end
    while True:
        now = monotonic()
        while due <= now and due < end:
            waiting.append(due)
            due += random.expovariate(rate)
        if not rate and now < end:
            waiting.extend([now] * len(free))
        while waiting and free:
            line = free.pop()
            line.due = waiting.popleft()
            line.socket.send(request)
        if now >= end and (leave or len(free) == connections or now > end + 60):
            break
        pause = max(due - monotonic(), 0.0) if due < end else 0.05
        select.select([poll], [], [], pause)  # epoll's own timeout counts milliseconds
        for number, _ in poll.poll(0):
            line = by_number[number]
            line.held += line.socket.recv(65536)
            if answer := _read(line.held):
                yield Answer(line.due, monotonic() - line.due, *answer)
                line.held = b""
                free.append(line)
    for line in lines:
        line.socket.close()


def _read(held: bytes) -> tuple[int, float] | None:
    """Return the status and Retry-After of an answer; None while it is not whole."""
    head, end, body = held.partition(b"\r\n\r\n")
    if not end:
        return None
    headers = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
    if len(body) < int(headers[b"content-length"]):
        return None
    return int(head[9:12]), float(headers.get(b"retry-after", 0))


def generate(arguments: Sequence[str]) -> None:
    """Be the callers: print every answer as JSON."""
    port, timeout_ms, rate, seconds, connections, leave, nice = arguments
    os.nice(int(nice))
    gc.disable()
    limit = {"timeout_ms": float(timeout_ms)} if float(timeout_ms) else {}
    body = json.dumps({"inputs": {"x": [[0.0] * 4]}, **limit}).encode()
    request = (
        b"POST /models/slow/predict HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(body), body)
    )
    answers = list(
        call(
            int(port), request, rate=float(rate), seconds=float(seconds),
            connections=int(connections), leave=leave == "leave",
        )
    )  # fmt: skip
    used = os.times()
    print(json.dumps([used.user + used.system, answers]))


# -- the server, and what is measured of it


class Round(NamedTuple):
    """The callers' results, and the processor seconds that they took."""

    answers: list[Answer]
    processor: float
    began: float
    ended: float

    def rate(self, seconds: float) -> float:
        """Answers with 200 a second that came while requests arrived."""
        until = self.began + seconds
        return sum(a.status == 200 and a.due + a.took <= until for a in self.answers) / seconds


class Bench:
    """A server with one model, and its callers."""

    def __init__(self, server: Cohort, *, timeout_ms: float, nice: int) -> None:
        self.server = server
        self.port = int(server.url.rpartition(":")[2])
        self._timeout_ms, self._nice = timeout_ms, nice

    def callers(
        self, *, rate: float, seconds: float, connections: int, leave: bool = False
    ) -> subprocess.Popen[str]:
        arguments = (
            self.port, self._timeout_ms, rate, seconds, connections, "leave" if leave else "stay",
            self._nice,
        )  # fmt: skip
        return subprocess.Popen(
            [sys.executable, "-m", "benchmarks.overload", "--callers", *map(str, arguments)],
            cwd=ROOT, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def heard(self, process: subprocess.Popen[str]) -> Round:
        output, _ = process.communicate()
        processor, answers = json.loads(output)
        found = [Answer(*one) for one in answers]
        began = min((one.due for one in found), default=0.0)
        return Round(found, processor, began, max((a.due + a.took for a in found), default=0.0))

    def capacity(self, seconds: float) -> float:
        """Answers a second with a few callers, each asking again once answered."""
        heard = self.heard(self.callers(rate=0, seconds=seconds, connections=CALLERS))
        return heard.rate(seconds)

    def ask(self) -> float | None:
        """Send once; return the seconds it took, or None if it was refused."""
        began = monotonic()
        with suppress(OSError):
            line = Line(self.port)
            body = json.dumps({"inputs": {"x": [[0.0] * 4]}}).encode()
            line.socket.send(
                b"POST /models/slow/predict HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n"
                b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
                % (len(body), body)
            )
            line.socket.setblocking(True)
            line.socket.settimeout(60)
            held = b""
            while part := line.socket.recv(65536):
                held += part
            line.socket.close()
            if held.startswith(b"HTTP/1.1 200"):
                return monotonic() - began
        return None

    def recovery(self, normal: float) -> float:
        """Seconds until a request is answered within `normal` seconds."""
        began = monotonic()
        while monotonic() < began + 60:
            asked = monotonic()
            took = self.ask()
            if took is not None and took <= normal:
                return asked - began
            sleep(0.02)
        return float("inf")

    @contextmanager
    def sampled(self) -> Iterator[list[float]]:
        """Resident MiB, four times a second."""
        samples: list[float] = []
        over = threading.Event()

        def sample() -> None:
            while not over.wait(0.25):
                samples.append(self.memory())

        thread = threading.Thread(target=sample)
        thread.start()
        try:
            yield samples
        finally:
            over.set()
            thread.join()

    def memory(self) -> float:
        """Resident MiB."""
        status = Path(f"/proc/{self.server.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1024

    def processor(self) -> dict[str, float]:
        """Processor seconds so far: of the event loop, of runs, and of other threads."""
        pid = self.server.process.pid
        found: dict[str, float] = defaultdict(float)
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                name = (task / "comm").read_text().strip()
                kind = "runs" if name.startswith("cohort-run") else "others"
                fields = (task / "stat").read_text().rpartition(")")[2].split()
                seconds = (int(fields[11]) + int(fields[12])) * usage.TICK
                found["loop" if task.name == str(pid) else kind] += seconds
        return found


def overload(bench: Bench, factor: float, seconds: float) -> dict[str, str]:
    """One round, as the rows of the table."""
    single = [bench.ask() or 1.0 for _ in range(50)]
    normal = max(4 * statistics.quantiles(single, n=20)[-1], 0.05)
    before, memory_before = bench.capacity(8), bench.memory()
    used = bench.processor()
    with bench.sampled() as memory:
        process = bench.callers(rate=factor * before, seconds=seconds, connections=CONNECTIONS)
        heard = bench.heard(process)
    used = {name: value - used[name] for name, value in bench.processor().items()}
    memory_after = bench.memory()
    after = bench.capacity(8)
    leaving = bench.callers(
        rate=factor * before, seconds=min(seconds, 10), connections=CONNECTIONS, leave=True
    )
    bench.heard(leaving)
    recovered = bench.recovery(normal)

    capacity = (before + after) / 2
    goodput = heard.rate(seconds)
    admitted = sorted(a.took for a in heard.answers if a.status == 200)
    statuses: dict[int, int] = defaultdict(int)
    for one in heard.answers:
        statuses[one.status] += 1
    last = max(a.due for a in heard.answers)
    lasted = heard.ended - heard.began
    half = len(memory) // 2
    return {
        "capacity before, after": f"{before:.0f}, {after:.0f}/s",
        "offered": f"{len(heard.answers) / seconds:.0f}/s for {seconds:.0f} s",
        "goodput": f"{goodput:.0f}/s, {100 * goodput / capacity:.0f} % of capacity",
        "answers by status": ", ".join(f"{k}: {v}" for k, v in sorted(statuses.items())),
        "admitted p50, p99, worst": ", ".join(f"{_at(admitted, q):.2f} s" for q in (0.5, 0.99, 1)),
        "refused p50, p99": _refused(heard),
        "Retry-After over waited": _retry(heard),
        "memory before, in it, after": f"{memory_before:.0f}, "
        f"{max(memory[:half], default=0):.0f} then {max(memory[half:], default=0):.0f}, "
        f"{memory_after:.0f} MiB",
        "cores used": ", ".join(f"{name} {value / lasted:.2f}" for name, value in used.items())
        + f", callers {heard.processor / lasted:.2f}",
        "answered all after": f"{heard.ended - last:.2f} s",
        "recovered, callers gone": f"{recovered:.2f} s (to within {normal * 1000:.0f} ms)",
    }  # fmt: skip


def _refused(heard: Round) -> str:
    refused = sorted(a.took for a in heard.answers if a.status == 429)
    if not refused:
        return "none"
    return ", ".join(f"{_at(refused, q) * 1e3:.1f} ms" for q in (0.5, 0.99))


def _at(ordered: Sequence[float], share: float) -> float:
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0


def _retry(heard: Round) -> str:
    """Return Retry-After in each half second, over the waits of those admitted then."""
    said: dict[int, list[float]] = defaultdict(list)
    waited: dict[int, list[float]] = defaultdict(list)
    for one in heard.answers:
        if one.status == 429:
            said[int(one.due * 2)].append(one.retry_after)
        elif one.status == 200:
            waited[int(one.due * 2)].append(one.took)
    times = [at for at in said if at in waited]
    both = [(statistics.median(said[at]), statistics.median(waited[at])) for at in times]
    if not both:
        return "nothing refused"
    ratios = sorted(a / b for a, b in both)
    return (
        f"{ratios[0]:.2f} to {ratios[-1]:.2f}, median {statistics.median(ratios):.2f} "
        f"({statistics.median(a for a, _ in both):.1f} s said, "
        f"{statistics.median(b for _, b in both):.1f} s waited)"
    )


def main() -> None:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--factor", type=float, default=3)
    parser.add_argument("--timeout-ms", type=float, default=0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--nice", type=int, default=LOWEST)
    parser.add_argument("--callers", nargs=argparse.REMAINDER)
    chosen = parser.parse_args()
    if chosen.callers:
        generate(chosen.callers)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        onnx_models.save(
            onnx_models.slow(nodes=chosen.nodes), folder / "models" / "slow" / "1" / "model.onnx"
        )
        config = folder / "models" / "slow" / "config.yaml"
        config.write_text("batching: {max_batch_size: 1}\n")
        with cohort(folder / "models", folder) as server:
            bench = Bench(server, timeout_ms=chosen.timeout_ms, nice=chosen.nice)
            rounds = [overload(bench, chosen.factor, chosen.seconds) for _ in range(chosen.rounds)]
    table = Table("", *(f"round {number + 1}" for number in range(len(rounds))))
    for name in rounds[0]:
        table.add_row(name, *(one[name] for one in rounds))
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
