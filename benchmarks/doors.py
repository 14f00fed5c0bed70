"""Measure the cost of a request by the door it comes in: as clients and balancers send it.

Commands::

    python -m benchmarks.doors                            every door, in turn
    python -m benchmarks.doors --only 'nginx|ab' --rounds 8
    python -m benchmarks.doors --checkout OTHER_CHECKOUT  the same of another checkout
    python -m benchmarks.doors --write                    writes results/doors.md

Cohort answers the benchmark's MLP; at some doors the tutorial server and a protocol on bare uvloop
are measured as well. Each round measures every door of every server once, and the plain one just
before. Reported are CPU per request and its ratio to the plain door's. No round is dropped: the
table shows how many cores others used.

A .npy file comes as the whole body and in a form. It has 10 numbers for the MLP, and 600 KB for a
model that averages an image. Cohort's fast path answers both, without FastAPI, as the column `fast`
shows; the tutorial server has a FastAPI route for each. What Cohort leaves to its FastAPI routes,
such as all that comes with a Content-Encoding, is one door.

A client in Python asks too slowly for its requests to have company in a run of the model, which
makes each cheaper. So the table has the rows of a run. If fewer than PACED requests a second were
answered, plain ones then arrive at that pace, one by one (benchmarks.openloop). A second ratio is
to these. It is below 1 where a client's own requests come in bursts.
"""

from __future__ import annotations

import os

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import json
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import rich_click as click
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import load, report
from benchmarks.fronts import Front, nginx
from benchmarks.lane import FOREIGN_CORES, JSON, PLAIN, Kind
from benchmarks.load import Heard
from benchmarks.measure import expected, model_folder
from benchmarks.programs import (
    CALLERS,
    Program,
    by_ab,
    by_client,
    by_python,
    by_wrk,
    go,
    java,
    told_by,
)
from benchmarks.servers import FLOOR, ROOT, SERVERS, Running, Server, cohort_of, launch
from benchmarks.uploads import npy_bodies, npy_forms
from benchmarks.workloads import IMAGE, WORKLOADS, Workload

RESULT = Path(__file__).parent / "results" / "doors.md"

PACED = 10_000

BESIDE = ("cohort", "tutorial", "bare uvloop")

MLP = next(one for one in WORKLOADS if one.name == "mlp")


@dataclass(frozen=True)
class Door:
    """A way for requests to come in, with its servers, workload and port of nginx.

    Doors of one name are one that servers have at different paths.
    """

    name: str
    ask: Program
    servers: Sequence[str] = ("cohort",)
    front: str = ""
    workload: Workload = MLP


def uploads(name: str, workload: Workload) -> Iterator[Door]:
    """The doors by which a file of a workload's input comes: as the whole body, and in a form."""
    path = f"/models/{workload.model}/predict"
    field = next(iter(workload.requests()[0]))
    for way, server, kind in (
        ("as the body", "cohort", npy_bodies(workload, path)),
        ("as the body", "tutorial", npy_bodies(workload, "/npy")),
        ("in a form", "cohort", npy_forms(workload, path, field)),
        ("in a form", "tutorial", npy_forms(workload, "/form", "file")),
    ):
        yield Door(f"{name} {way}", by_wrk(kind), (server,), workload=workload)


CLOSED = (JSON, "Connection: close")
CODED = (JSON, "Content-Encoding: identity")

DOORS = (
    Door("plain", by_wrk(Kind("plain", PLAIN)), BESIDE),
    Door("head and body apart", by_python("split")),
    Door("httpx", by_python("httpx")),
    Door("requests", by_python("requests")),
    Door("aiohttp", by_python("aiohttp")),
    Door("Go", by_client(go)),
    Door("Java", by_client(java)),
    Door("a query", by_wrk(Kind("query", PLAIN, ("/predict?x=1",)))),
    Door("nginx", by_wrk(Kind("nginx", PLAIN)), BESIDE, "plain"),
    Door("nginx, keepalive", by_wrk(Kind("nginx kept", PLAIN)), BESIDE, "kept"),
    Door("Connection: close", by_wrk(Kind("closed", PLAIN, headers=CLOSED)), BESIDE),
    Door("a connection for each request", by_python("opening"), BESIDE),
    Door("ab -k", by_ab("-k"), BESIDE[:2]),
    Door("ab", by_ab(), BESIDE[:2]),
    Door("a lone caller", by_wrk(Kind("lone", PLAIN, connections=1)), BESIDE),
    Door("Content-Encoding: identity", by_wrk(Kind("coded", PLAIN, headers=CODED)), BESIDE[:2]),
    *uploads("a .npy file", MLP),
    *uploads("a .npy file of 600 KB", IMAGE),
)


@dataclass
class Figures:
    """The results of a door at a server; `foreign` are the cores that others used."""

    cpu_us: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    paced: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    hot: list[float] = field(default_factory=list)
    rows: list[float] = field(default_factory=list)
    foreign: list[float] = field(default_factory=list)
    failed: str = ""

    def add(self, heard: Heard, plain: Heard, paced: float | None = None) -> None:
        """Add the results of a round; `paced` is the time of a plain request at that pace."""
        self.cpu_us.append(heard["cpu_us"])
        self.ratios.append(heard["cpu_us"] / plain["cpu_us"])
        self.rates.append(heard["requests"] / heard["seconds"])
        self.hot.append(min(heard["hot"], 1.0))
        self.rows.append(heard["rows"])
        self.foreign.append(heard["foreign"])
        if paced is not None:
            self.paced.append(heard["cpu_us"] / paced)


Found = Mapping[tuple[str, str], Figures]


@dataclass(frozen=True)
class Place:
    """A started server, and the nginx in front of it, if any."""

    running: Running
    front: Front | None

    def measure(self, door: Door, seconds: float) -> Heard:
        """Return the results of the door, with `rows` of a run, and `foreign` cores."""
        url, beside = self.running.url, []
        if door.front:
            if self.front is None:
                raise RuntimeError("nginx is not installed: apt-get install nginx-light")
            url, beside = f"http://127.0.0.1:{self.front.ports[door.front]}", [self.front.session]
        folder, before = self.running.log.parent, self.runs()
        heard, foreign = load.watched(self.running, lambda: door.ask(url, folder, seconds), beside)
        rows, runs = self.runs() - before
        return {**heard, "rows": rows / runs if runs else 0.0, "foreign": foreign}

    def runs(self) -> NDArray[np.float64]:
        """Return the model's rows and runs so far; zeros if the server does not count them."""
        names = ("model_batch_rows_sum", "model_batch_rows_count")
        return np.array([self.running.metric(name) or 0.0 for name in names])

    def plain_at(self, rate: float, seconds: float) -> float:
        """Return the CPU of a plain request at `rate` requests a second, in microseconds."""

        def ask() -> Heard:
            call = self.running.log.parent / "call-0.http"
            told = json.loads(told_by([
                sys.executable, "-m", "benchmarks.openloop", str(self.running.port), str(call),
                str(rate), str(seconds), str(CALLERS),
            ]))  # fmt: skip
            if told["failures"]:
                raise RuntimeError(f"{told['failures']} plain requests failed")
            return {"requests": told["sent"] * seconds}

        heard, _ = load.watched(self.running, ask)
        cpu_us: float = heard["cpu_us"]
        return cpu_us


Places = Mapping[tuple[str, Workload], Place]


def started(server: Server, workload: Workload, stack: ExitStack) -> Place:
    """Start a server, which must answer rightly, with an nginx in front."""
    running = launch(server, workload, model_folder(workload))
    stack.callback(running.stop)
    running.wait()
    if server is not FLOOR:
        running.check(expected(workload))
    load.write_calls(running, running.log.parent)
    return Place(running, stack.enter_context(nginx(running)))


def measure(places: Places, found: Found, *, rounds: int, seconds: float) -> None:
    """Measure every door in turn, and add it to `found`; a failed door is reported and left out."""
    plain = DOORS[0]
    doors = {(door.name, server): door for door in DOORS for server in door.servers}
    keys = [key for key in found if key[0] != plain.name]
    warm = [(0, key) for key in found]
    steps = [
        (number, key)
        for number in range(1, rounds + 1)
        for key in (keys if number % 2 else keys[::-1])
    ]
    for number, (name, server) in track([*warm, *steps], "doors"):
        door = doors[name, server]
        place, plain_place = places[server, door.workload], places[server, plain.workload]
        if found[name, server].failed:
            continue
        try:
            if not number:
                place.measure(door, 1)
                continue
            base = plain_place.measure(plain, seconds)
            heard = place.measure(door, seconds)
            rate = heard["requests"] / heard["seconds"]
            at_pace = server == "cohort" and rate < PACED
            paced = plain_place.plain_at(rate, seconds) if at_pace else None
        except (RuntimeError, OSError, ValueError, subprocess.SubprocessError) as error:
            found[name, server].failed = " ".join(str(error).split())
        else:
            found[plain.name, server].add(base, base)
            found[name, server].add(heard, base, paced)


COLUMNS = (
    "door", "server", "CPU, µs", "range", "of plain", "range", "paced ratio",
    "requests/s", "rows a run", "fast", "others, cores",
)  # fmt: skip


def cells(found: Found) -> Iterator[list[str]]:
    """Yield the rows of the table, as COLUMNS names them."""
    for (door, server), figures in found.items():
        if figures.failed or not figures.cpu_us:
            yield [door, server, "left out", *[""] * (len(COLUMNS) - 3)]
            continue
        yield [
            door,
            server,
            f"{statistics.median(figures.cpu_us):.1f}",
            f"{min(figures.cpu_us):.1f} to {max(figures.cpu_us):.1f}",
            f"{statistics.median(figures.ratios):.2f}",
            f"{min(figures.ratios):.2f} to {max(figures.ratios):.2f}",
            f"{statistics.median(figures.paced):.2f}" if figures.paced else "",
            f"{statistics.median(figures.rates):,.0f}",
            f"{statistics.median(figures.rows):.1f}" if any(figures.rows) else "",
            f"{statistics.median(figures.hot):.0%}" if server == "cohort" else "",
            f"{statistics.median(figures.foreign):.2f}",
        ]


def reasons(found: Found) -> Iterator[str]:
    """Why doors are left out, a line for each."""
    for (door, server), figures in found.items():
        if figures.failed:
            yield f"{door}, {server}, is left out: {figures.failed[:200]}"


def summed_up(found: Found, rounds: int, seconds: float) -> str:
    """Return a line with the number of measurements, and how busy the machine was."""
    foreign = [one for figures in found.values() for one in figures.foreign] or [0.0]
    busy = sum(one > FOREIGN_CORES for one in foreign)
    return (
        f"{rounds} rounds of {seconds:g} s at each door\n"
        f"- in {busy} of {len(foreign)} measurements others used more than {FOREIGN_CORES:g} of "
        f"{os.cpu_count()} cores: "
        f"{statistics.median(foreign):.2f} in the median, {max(foreign):.2f} at most"
    )


def write(found: Found, title: str) -> None:
    """Write results/doors.md."""
    says = (
        "The CPU time is the server's per request, with its ratio to small plain requests of the "
        "same server.\nThese use 64 kept connections, with head and body in one segment.\n"
        f"Below {PACED:,} requests a second, a second ratio is to plain requests at that pace, one "
        "by one.\nIt is below 1 if a client's requests come in bursts, which share runs.\n"
        "`fast` is the share that the fast HTTP protocol answered; the tutorial server answers "
        "files by FastAPI routes.\n"
        "The time of nginx and of the callers does not count, but they share the machine."
    )
    report.write_page(
        RESULT, "Cost of a request by the door it comes in", says,
        "python -m benchmarks.doors --write", title,
        [*report.markdown(COLUMNS, list(cells(found))), "", *reasons(found)],
    )  # fmt: skip


@click.command()
@click.option("--checkout", type=click.Path(exists=True, file_okay=False, path_type=Path),
              default=ROOT, help="Checkout of Cohort; default: this one.")  # fmt: skip
@click.option("--only", default="", help="Doors whose names this expression finds.")
@click.option("--rounds", default=5, show_default=True, help="Measurements of each door.")
@click.option("--seconds", default=2.0, show_default=True, help="Length of a measurement.")
@click.option("--write", "writes", is_flag=True, help="Write results/doors.md.")
def main(checkout: Path, only: str, rounds: int, seconds: float, writes: bool) -> None:
    """Measure what a request costs by the door it comes in."""
    if problem := load.missing():
        raise click.ClickException(problem)
    chosen = [door for door in DOORS[1:] if re.search(only, door.name)]
    if not chosen:
        raise click.ClickException(f"no door is named like {only!r}")
    servers = {
        "cohort": cohort_of("doors", checkout.resolve(), {}),
        "tutorial": SERVERS["tutorial"],
        "bare uvloop": FLOOR,
    }
    names = [name for name in servers if any(name in door.servers for door in chosen)]
    keys = [(DOORS[0].name, name) for name in names]
    keys += [(door.name, name) for door in chosen for name in door.servers]
    found = {key: Figures() for key in keys}
    wanted = [
        (name, door.workload)
        for door in (DOORS[0], *chosen)
        for name in names
        if name in door.servers
    ]
    with ExitStack() as stack:
        places = {
            (name, workload): started(servers[name], workload, stack)
            for name, workload in dict.fromkeys(wanted)
        }
        measure(places, found, rounds=rounds, seconds=seconds)
    title = summed_up(found, rounds, seconds)
    table = Table(*COLUMNS, title=title)
    for row in cells(found):
        table.add_row(*row)
    console = Console(width=160)
    console.print(table)
    for reason in reasons(found):
        console.print(reason)
    if writes:
        write(found, title)


if __name__ == "__main__":
    main()
