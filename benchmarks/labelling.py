"""Files and texts to labels, by several servers: how each is started and asked, in turns.

The others run the same code (others/work.py) as in their own documentation. FastAPI uses its
threads, LitServe a process for each core, BentoML a thread for each core.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import httpx

from benchmarks import load, report, usage
from benchmarks.servers import BUILD, COHORT, OTHERS, Running, Server, Start, launch
from benchmarks.workloads import Call, Workload

FOREIGN_CORES = 0.25
"""Cores that others may use in a round that counts."""

TRIES = 3
"""Maximum measurements of a round until others leave the machine alone."""

QUIET_SECONDS = 30.0
"""Maximum wait of a round for others to leave the machine alone."""

SETTLES = 3.0
"""Seconds until a server is measured: Cohort tries models in idle moments after their load."""

CORES = str(os.cpu_count() or 1)

PACKAGES = (
    "torch==2.13.0", "torchvision==0.28.0", "pillow==13.0.0", "tokenizers==0.23.3",
    "onnxruntime==1.31.1", "uvloop", "httptools",
)  # fmt: skip

COLUMNS = (
    "callers", "server", "requests/s", "range", "CPU ms each", "range", "of Cohort's", "range",
    "p50 ms", "p99 ms", "range", "others, cores", "rounds",
)  # fmt: skip


@dataclass(frozen=True)
class Work:
    """The work of the servers, by its name in others/work.py, with a folder of models for Cohort.

    file: The network's file. environment: Further variables for the others.
    """

    name: str
    models: Path
    file: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def workload(self) -> Workload:
        """Return its description for `launch`."""
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
    """Return the servers. Raises RuntimeError where one cannot be installed."""
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


class Round(NamedTuple):
    """The results of a server; `others` is the machine's use by others, in cores."""

    rate: float
    cpu_ms: float
    p50: float
    p99: float
    others: float


def measure(
    work: Work, sent: Sequence[bytes], callers: Sequence[int], *, rounds: int, seconds: float,
    only: Sequence[str] = (), keep_all: bool = False,
) -> tuple[list[list[str]], str]:  # fmt: skip
    """Start all servers, and measure them in turns, with the others stopped.

    Gives the lines of a table, and how much was dropped. A round in which others used more than
    FOREIGN_CORES of the machine is measured again, TRIES times at most, then dropped. Raises
    RuntimeError if wrk is missing, or a server does not start or answers another label than the
    first.
    """
    if problem := load.missing():
        raise RuntimeError(problem)
    lines: list[list[str]] = []
    dropped = 0
    with ExitStack() as stack:
        running = _start_all(stack, work, sent, only)
        for many in callers:
            for one, calls in running.values():  # to warm it up
                _ask(one, calls, many, 1)
            found: list[dict[str, Round]] = [{} for _ in range(rounds)]
            for turn in found:
                for name, (one, calls) in running.items():
                    for _ in range(TRIES):
                        _wait_for_quiet(0 if keep_all else QUIET_SECONDS)
                        heard = _ask(one, calls, many, seconds)
                        if keep_all or heard.others <= FOREIGN_CORES:
                            turn[name] = heard
                            break
                        dropped += 1
            lines += _cells(many, list(running), found)
    kept = (
        "none was dropped, whatever others did" if keep_all
        else f"{dropped} more were dropped, in which others used over {FOREIGN_CORES} cores"
    )  # fmt: skip
    return lines, f"{rounds} rounds of {seconds:g} s each, in turns; {kept}"


def _start_all(
    stack: ExitStack, work: Work, sent: Sequence[bytes], only: Sequence[str]
) -> dict[str, tuple[Running, Path]]:
    """Return the servers, stopped, and what they are asked; all give the same labels."""
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
        time.sleep(SETTLES)
        one.settle()
        one.pause()
    return running


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


def _ask(one: Running, calls: Path, callers: int, seconds: float) -> Round:
    one.resume()
    heard, others = load.watched(one, lambda: load.ask_by_wrk(calls, one.url, callers, seconds))
    one.settle(5)
    one.pause()
    if heard["refused"] or heard["errors"]:
        raise RuntimeError(f"{one.server.name}: {heard}")
    rate = heard["requests"] / heard["seconds"]
    return Round(rate, heard["cpu_us"] / 1e3, heard["p50"] * 1e3, heard["p99"] * 1e3, others)


def _wait_for_quiet(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        busy = usage.busy_seconds()
        time.sleep(0.5)
        if usage.busy_seconds() - busy <= FOREIGN_CORES * 0.5:
            return


def _cells(
    callers: int, names: Sequence[str], rounds: Sequence[Mapping[str, Round]]
) -> Iterator[list[str]]:
    for name in names:
        kept = [one[name] for one in rounds if name in one]
        if not kept:
            yield [str(callers), name, "every round was dropped", *[""] * (len(COLUMNS) - 3)]
            continue
        rate, cpu, p50, p99, others = zip(*kept, strict=True)
        both = [one for one in rounds if name in one and names[0] in one]
        ratios = [one[name].cpu_ms / one[names[0]].cpu_ms for one in both]
        yield [
            str(callers), name, f"{statistics.median(rate):,.0f}",
            f"{min(rate):,.0f} to {max(rate):,.0f}", _middle(cpu), _spread(cpu), _middle(ratios),
            _spread(ratios), _middle(p50), _middle(p99), _spread(p99), _middle(others),
            str(len(kept)),
        ]  # fmt: skip


def _middle(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3g}" if values else ""


def _spread(values: Sequence[float]) -> str:
    return f"{min(values):.3g} to {max(values):.3g}" if values else ""


def fresh(name: str) -> Path:
    """Return an empty folder for models and files."""
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
    """The lines of one measurement, and its conditions."""

    title: str
    run: str
    lines: list[list[str]]


def show(name: str, title: str, says: str, tables: Sequence[Table], *, write: bool) -> None:
    """Print the tables, and write results/NAME.md on request."""
    text = [
        line
        for one in tables
        for line in (f"\n{one.title}: {one.run}\n", *report.markdown(COLUMNS, one.lines))
    ]
    print(title, *text, sep="\n")
    if write:
        load_average = (
            f"load average at the end {os.getloadavg()[1]:.1f}; `others` is other work in cores"
        )
        report.write_page(
            Path(__file__).parent / "results" / f"{name}.md", title, says,
            f"python -m benchmarks.{name} --write", load_average, text,
        )  # fmt: skip
