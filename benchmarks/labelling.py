"""Files and texts to labels, by several servers: how each is started and asked, in turns.

The others have the recipe that their own documentation gives, around the same code
(others/work.py): FastAPI on its threads, LitServe with a process and BentoML with a thread for
each core, which is the better of that and one with either.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx

from benchmarks import load, report, usage
from benchmarks.servers import BUILD, COHORT, OTHERS, Running, Server, Start, launch
from benchmarks.workloads import Call, Workload

FOREIGN_CORES = 0.25
"""What others may use of the machine in a round that counts."""

TRIES = 3

QUIET_SECONDS = 60.0
"""How long a round waits for others to leave the machine alone."""

CORES = str(os.cpu_count() or 1)

PACKAGES = (
    "torch==2.13.0", "torchvision==0.28.0", "pillow==13.0.0", "tokenizers==0.23.3",
    "onnxruntime==1.31.1", "uvloop", "httptools",
)  # fmt: skip

COLUMNS = (
    "callers", "server", "requests/s", "range", "CPU ms each", "range", "p50 ms", "p99 ms",
    "range", "rounds",
)  # fmt: skip


@dataclass(frozen=True)
class Work:
    """What the others do, by its name in others/work.py, on a folder of models for Cohort.

    file: The network's. environment: What the others need to know besides.
    """

    name: str
    models: Path
    file: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def workload(self) -> Workload:
        """What `launch` calls it."""
        return Workload(self.name, self.file.parents[1].name)


@dataclass(frozen=True)
class Asked:
    """A server, and the request that it gets for a picture or a text."""

    server: Server
    call: Callable[[bytes], Call]


def _start(work: Work, command: Sequence[str], **environment: str) -> Start:
    known = {"WORK": work.name, "MODEL": str(work.file), "PYTHONPATH": str(OTHERS)}
    return Start(command, {**known, **work.environment, **environment})


def servers(work: Work) -> list[Asked]:
    """The servers. Raises RuntimeError where one cannot be installed."""
    picture = work.name == "picture"

    def server(name: str, ready: str, start: Callable[[int], Start], *packages: str) -> Server:
        made = (*packages, *PACKAGES) if packages else ()
        return Server(name, lambda _, __, port, ___: start(port), COHORT.ask, ready, made)

    def fastapi(port: int) -> Start:
        command = [rest.python(), "-m", "uvicorn", "work_fastapi:app", "--port", str(port)]
        return _start(work, [*command, "--no-access-log"])

    def litserve(port: int) -> Start:
        command = [lit.python(), str(OTHERS / "work_lit.py")]
        return _start(work, command, PORT=str(port), WORKERS=CORES)

    def bentoml(port: int) -> Start:
        command = [str(Path(bento.python()).parent / "bentoml"), "serve", "work_bento:Labels"]
        command += ["--port", str(port), "--working-dir", str(OTHERS)]
        return _start(work, command, THREADS=CORES, BENTOML_DO_NOT_TRACK="true")

    rest = server("FastAPI", "/health", fastapi, "fastapi==0.165.0", "uvicorn==0.54.0")
    lit = server("LitServe", "/health", litserve, "litserve==0.2.19", "python-multipart")
    bento = server("BentoML", "/readyz", bentoml, "bentoml==1.4.40")
    plain: Callable[[str], Callable[[bytes], Call]]
    plain, form = (_picture, _form) if picture else (_text, _text)
    return [
        Asked(replace(COHORT, name="Cohort"), _picture("/predict") if picture else _whole),
        Asked(rest, plain(f"/{work.name}")),
        Asked(bento, form(f"/{work.name}")),
        Asked(lit, form("/predict")),
    ]


def _picture(path: str) -> Callable[[bytes], Call]:
    return lambda sent: Call(path, {"Content-Type": "image/jpeg"}, sent)


def _form(path: str) -> Callable[[bytes], Call]:
    head = (
        b'--edge\r\nContent-Disposition: form-data; name="image"; filename="a.jpg"\r\n'
        b"Content-Type: image/jpeg\r\n\r\n"
    )
    headers = {"Content-Type": "multipart/form-data; boundary=edge"}
    return lambda sent: Call(path, headers, head + sent + b"\r\n--edge--\r\n")


def _text(path: str) -> Callable[[bytes], Call]:
    headers = {"Content-Type": "application/json"}
    return lambda sent: Call(path, headers, json.dumps({"text": sent.decode()}).encode())


def _whole(sent: bytes) -> Call:
    body = json.dumps({"input": [sent.decode()]}).encode()
    return Call("/predict", {"Content-Type": "application/json"}, body)


@dataclass
class Figures:
    """What was measured of a server, a number a round."""

    rates: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    p50: list[float] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)


def measure(
    work: Work, sent: Sequence[bytes], callers: Sequence[int], *, rounds: int, seconds: float,
    only: Sequence[str] = (), keep_all: bool = False,
) -> tuple[list[list[str]], str]:  # fmt: skip
    """Start all servers, and measure them in turns, the others stopped meanwhile.

    Gives the lines of a table, and how much was dropped. A round in which others used more than
    FOREIGN_CORES of the machine is measured again, TRIES times at most, then dropped.
    Raises RuntimeError where a server does not start, or answers another label than the first.
    """
    lines: list[list[str]] = []
    dropped = 0
    with ExitStack() as stack:
        running: dict[str, tuple[Running, Path]] = {}
        labels: list[str] = []
        for asked in servers(work):
            if only and asked.server.name not in only:
                continue
            one = launch(asked.server, work.workload, work.models)
            stack.callback(one.stop)
            one.wait()
            found = [_label(one, asked.call(each)) for each in sent]
            labels = labels or found
            if found != labels:
                raise RuntimeError(f"{asked.server.name} answers {found}, the first {labels}")
            running[asked.server.name] = (one, _written(one, asked, sent))
            one.pause()
        for many in callers:
            results = {name: Figures() for name in running}
            for number in range(rounds + 1):
                for name, (one, calls) in running.items():
                    dropped += _round(one, calls, many, seconds, results[name], keep_all=keep_all)
                    if not number:
                        results[name] = Figures()  # it was warmed up
            lines += _cells(many, results)
    return lines, (
        f"{rounds} rounds of {seconds:g} s each, in turns; {dropped} more were dropped, in which "
        f"others used over {FOREIGN_CORES} cores"
    )


def _written(one: Running, asked: Asked, sent: Sequence[bytes]) -> Path:
    calls = []
    for each in sent:
        call = asked.call(each)
        head = {"Host": "127.0.0.1", **call.headers, "Content-Length": str(len(call.body))}
        text = "".join(f"{name}: {value}\r\n" for name, value in head.items())
        calls.append(f"POST {call.path} HTTP/1.1\r\n{text}\r\n".encode() + call.body)
    folder = one.log.parent / "calls"
    load.list_calls(folder, load.SCRIPT, calls)
    return folder


def _label(one: Running, call: Call) -> str:
    answer = httpx.post(
        one.url + call.path, content=call.body, headers=dict(call.headers), timeout=60
    )
    if answer.status_code != 200:
        raise RuntimeError(f"{one.server.name}: {answer.status_code}: {answer.text[:300]}")
    said = answer.json()
    row = said["labels"][0] if "labels" in said else said
    return str(row["label"])


def _round(
    one: Running, calls: Path, callers: int, seconds: float, figures: Figures, *, keep_all: bool
) -> int:
    """Measure, and add to `figures`; how often it was dropped."""
    for tried in range(TRIES):
        _wait_for_quiet(0 if keep_all else QUIET_SECONDS)
        one.resume()
        heard, foreign = load.watched(
            one, lambda: load.ask_by_wrk(calls, one.url, callers, seconds)
        )
        one.settle(5)
        one.pause()
        if heard["refused"] or heard["errors"]:
            raise RuntimeError(f"{one.server.name}: {heard}")
        if foreign <= FOREIGN_CORES or keep_all:
            figures.rates.append(heard["requests"] / heard["seconds"])
            figures.cpu_ms.append(heard["cpu_us"] / 1e3)
            figures.p50.append(heard["p50"] * 1e3)
            figures.p99.append(heard["p99"] * 1e3)
            return tried
    return TRIES


def _wait_for_quiet(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        busy = usage.busy_seconds()
        time.sleep(0.5)
        if usage.busy_seconds() - busy <= FOREIGN_CORES * 0.5:
            return


def _cells(callers: int, results: Mapping[str, Figures]) -> Iterator[list[str]]:
    def middle(values: Sequence[float]) -> str:
        return f"{statistics.median(values):.3g}"

    def spread(values: Sequence[float]) -> str:
        return f"{min(values):.3g} to {max(values):.3g}"

    for name, one in results.items():
        if not one.rates:
            yield [str(callers), name, "every round was dropped", *[""] * (len(COLUMNS) - 3)]
            continue
        yield [
            str(callers), name, f"{statistics.median(one.rates):,.0f}",
            f"{min(one.rates):,.0f} to {max(one.rates):,.0f}",
            middle(one.cpu_ms), spread(one.cpu_ms), middle(one.p50), middle(one.p99),
            spread(one.p99), str(len(one.rates)),
        ]  # fmt: skip


def fresh(name: str) -> Path:
    """An empty folder for models and files."""
    folder = BUILD / "labelling" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


VERSIONS = ", ".join(
    f"{one} {version}"
    for one, version in (("FastAPI", "0.165.0"), ("BentoML", "1.4.40"), ("LitServe", "0.2.19"))
)


@dataclass(frozen=True)
class Table:
    """The lines of what was measured at once, and how."""

    title: str
    run: str
    lines: list[list[str]]


def show(name: str, title: str, says: str, tables: Sequence[Table], *, write: bool) -> None:
    """Print the tables, and write results/NAME.md where that is asked for."""
    text = [
        line
        for one in tables
        for line in (f"\n{one.title}: {one.run}\n", *report.markdown(COLUMNS, one.lines))
    ]
    print(title, *text, sep="\n")
    if write:
        load_average = f"load average at the end {os.getloadavg()[1]:.1f}; other work ran beside it"
        report.write_page(
            Path(__file__).parent / "results" / f"{name}.md", title, says,
            f"python -m benchmarks.{name} --write", load_average, text,
        )  # fmt: skip


if problem := load.missing():
    sys.exit(problem)
