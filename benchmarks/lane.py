"""Measure the fast lane: the cost of requests of each kind, compared with the plain one.

Commands::

    python -m benchmarks.lane                          every kind, in turn
    python -m benchmarks.lane --only 'headers|id' --rounds 8
    python -m benchmarks.lane --checkout OTHER_CHECKOUT   the same of another checkout
    python -m benchmarks.lane --runs 3 --write         three servers in turn; writes results/lane.md

One server has the benchmark's MLP under its name, with labels, with four rollouts, and in a hundred
copies. Each round measures every kind once, the plain one at both ends, so that what else the
machine does hits all of them. Rounds in which others used more than FOREIGN_CORES are dropped and
counted. Reported are CPU per request and its ratio to the plain kind's in the same round.
"""

from __future__ import annotations

import os

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import json
import re
import shutil
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import rich_click as click
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import load, report
from benchmarks.measure import model_folder
from benchmarks.servers import BUILD, ROOT, SERVERS, Running, Start, launch, source_path
from benchmarks.workloads import WORKLOADS, Workload

FOREIGN_CORES = 0.25
"""Cores that others may use in a round that counts."""

COPIES = 100

RESULT = Path(__file__).parent / "results" / "lane.md"

ROLLOUTS = """
sole: {variants: {a: {version: 1, weight: 100}, b: {version: 2, weight: 0}}, baseline: a}
split: {variants: {a: {version: 1, weight: 90}, b: {version: 2, weight: 10}}, baseline: a}
sticky:
  variants: {a: {version: 1, weight: 90}, b: {version: 2, weight: 10}}
  baseline: a
  sticky: {header: x-user-id}
shadowed:
  variants: {a: {version: 1, weight: 100}}
  baseline: a
  shadow: {version: 2, sample: 1.0}
"""

LABELS = "outputs: {y: {labels: [red, orange, yellow, green, blue]}}\n"

SCRIPT = """
local calls, turn = {}, 0
function init(args)
  math.randomseed(os.time())
  local list = assert(io.open(args[1], "r"))
  for line in list:lines() do
    local file = assert(io.open(line, "rb"))
    local text = file:read("*a")
    file:close()
    calls[#calls + 1] = {text, text:find("@", 1, true) ~= nil}
  end
  turn = math.random(#calls)
end
local function random_hex(run)
  local text = ""
  for _ = 1, #run, 4 do text = text .. string.format("%04x", math.random(0, 65535)) end
  return text:sub(1, #run)
end
function request()
  turn = turn % #calls + 1
  local call = calls[turn]
  if call[2] then return (call[1]:gsub("@+", random_hex)) end
  return call[1]
end
"""

JSON = "Content-Type: application/json"
HEX16, HEX32 = "@" * 16, "@" * 32
TRACE = f"traceparent: 00-{HEX32}-{HEX16}-01"

GO = ("User-Agent: Go-http-client/1.1", JSON, "Accept-Encoding: gzip")
JAVA = (
    "Connection: Upgrade, HTTP2-Settings",
    "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA", "Upgrade: h2c",
    "User-Agent: Java-http-client/21.0.4", JSON,
)  # fmt: skip
OKHTTP = (JSON, "Connection: Keep-Alive", "Accept-Encoding: gzip", "User-Agent: okhttp/4.12.0")
PYTHON = (
    "Accept: */*", "Accept-Encoding: gzip, deflate", "Connection: keep-alive",
    "User-Agent: python-httpx/0.28.1", JSON,
)  # fmt: skip
BROWSER = (
    "Connection: keep-alive", "X-Real-IP: 10.1.2.3", "X-Forwarded-For: 10.1.2.3",
    f"X-Request-ID: {HEX32}", 'sec-ch-ua: "Chromium";v="140", "Not=A?Brand";v="24"',
    "sec-ch-ua-mobile: ?0", 'sec-ch-ua-platform: "Linux"',
    "User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 Chrome/140.0.0.0 Safari/537.36",
    JSON, "Accept: */*", "Sec-Fetch-Site: same-origin", "Sec-Fetch-Mode: cors",
    "Sec-Fetch-Dest: empty", "Referer: https://shop.example/", "Accept-Encoding: gzip, deflate, br",
    "Accept-Language: de-DE,de;q=0.9,en;q=0.8", f"Cookie: session={HEX32}; seen={HEX16}", TRACE,
)  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """A kind of request, and wrk's script for it.

    The default script replaces `@`s in head or body by random hexadecimal digits in each request.
    """

    name: str
    bodies: Sequence[bytes]
    paths: Sequence[str] = ("/predict",)
    headers: Sequence[str] = (JSON,)
    connections: int = 64
    script: str = SCRIPT

    def calls(self) -> Iterator[bytes]:
        """Yield the requests as they go over the wire, asked for in turn."""
        for number in range(max(len(self.bodies), len(self.paths))):
            body = self.bodies[number % len(self.bodies)]
            path = self.paths[number % len(self.paths)]
            lines = ("Host: 127.0.0.1", *self.headers, f"Content-Length: {len(body)}")
            head = "".join(f"{line}\r\n" for line in lines)
            yield f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + body


def _rows(count: int) -> list[list[list[float]]]:
    random = np.random.default_rng(1)
    return [
        random.standard_normal((count, 10), dtype=np.float32).astype(float).round(6).tolist()
        for _ in range(16)
    ]


def _bodies(form: str, rows: int = 1) -> list[bytes]:
    """`form` with the rows in place of ROWS, as an input of V2 in place of V2."""
    made = []
    for one in _rows(rows):
        flat = [value for row in one for value in row]
        tensor = {"name": "x", "datatype": "FP32", "shape": [rows, 10], "data": flat}
        text = form.replace("ROWS", json.dumps(one)).replace("V2", json.dumps(tensor))
        made.append(text.replace("HEX", HEX16).encode())
    return made


def _binary(rows: int = 1, *, output: bool = True) -> list[bytes]:
    made = []
    for one in _rows(rows):
        data = np.array(one, np.float32).tobytes()
        tensor = {"name": "x", "datatype": "FP32", "shape": [rows, 10],
                  "parameters": {"binary_data_size": len(data)}}  # fmt: skip
        head = {"inputs": [tensor], "parameters": {"binary_data_output": output}}
        made.append(json.dumps(head).encode() + data)
    return made


PLAIN = _bodies('{"input": ROWS}')


def _v2_binary() -> Kind:
    bodies = _binary()
    length = len(bodies[0]) - 40
    header = f"Inference-Header-Content-Length: {length}"
    return Kind("V2 binary", bodies, ("/v2/models/mlp/infer",), (JSON, header))


def kinds() -> list[Kind]:
    """All kinds, the plain one first."""
    many = [f"/models/copy-{number:03}/predict" for number in range(COPIES)]
    mlp, v2 = ("/models/mlp/predict",), ("/v2/models/mlp/infer",)
    return [
        Kind("plain", PLAIN),
        Kind("plain, model in the path", PLAIN, mlp),
        Kind("headers: gzip alone", PLAIN, headers=(JSON, "Accept-Encoding: gzip")),
        Kind("headers: traceparent", PLAIN, headers=(JSON, TRACE)),
        Kind("headers: traceparent, not sampled", PLAIN, headers=(JSON, f"{TRACE[:-1]}0")),
        Kind("headers: request id", PLAIN, headers=(JSON, f"X-Request-ID: {HEX32}")),
        Kind("headers: cookie", PLAIN, headers=(JSON, f"Cookie: session={HEX32}")),
        Kind("headers: Go, traced", PLAIN, headers=(*GO, TRACE)),
        Kind("headers: OkHttp", PLAIN, headers=OKHTTP),
        Kind("headers: Java", PLAIN, headers=JAVA),
        Kind("headers: Python httpx", PLAIN, headers=PYTHON),
        Kind("headers: browser, proxy, traced", PLAIN, headers=BROWSER),
        Kind("body: inputs by name", _bodies('{"inputs": {"x": ROWS}}')),
        Kind("body: version", _bodies('{"version": 1, "input": ROWS}')),
        Kind("body: id", _bodies('{"inputs": {"x": ROWS}, "id": "HEX"}')),
        Kind("body: outputs", _bodies('{"inputs": {"x": ROWS}, "outputs": ["y"]}')),
        Kind("body: 2 rows", _bodies('{"input": ROWS}', 2)),
        Kind("body: 8 rows", _bodies('{"input": ROWS}', 8)),
        Kind("V2 JSON", _bodies('{"inputs": [V2]}'), v2),
        Kind("V2 JSON, version in the path", _bodies('{"inputs": [V2]}'),
             ("/v2/models/mlp/versions/1/infer",)),
        Kind("V2 JSON, id and outputs",
             _bodies('{"id": "HEX", "inputs": [V2], "outputs": [{"name": "y"}]}'), v2),
        Kind("V2 JSON, 8 rows", _bodies('{"inputs": [V2]}', 8), v2),
        _v2_binary(),
        Kind("V1", _bodies('{"instances": ROWS}'), ("/v1/models/mlp:predict",)),
        Kind("labels", PLAIN, ("/models/labelled/predict",)),
        Kind("labels, top 3", PLAIN, ("/models/labelled/predict?top=3",)),
        Kind("rollout 100/0", PLAIN, ("/models/sole/predict",)),
        Kind("rollout 90/10", PLAIN, ("/models/split/predict",)),
        Kind("rollout 90/10, sticky", PLAIN, ("/models/sticky/predict",),
             (JSON, f"X-User-Id: {HEX16}")),
        Kind("shadow of all", PLAIN, ("/models/shadowed/predict",)),
        Kind("10 models", PLAIN, many[:10]),
        Kind("30 models", PLAIN, many[:30]),
        Kind("100 models", PLAIN, many),
        Kind("a connection for each request", PLAIN, headers=(JSON, "Connection: close")),
        Kind("one connection", PLAIN, connections=1),
        Kind("one connection, 100 models", PLAIN, many, connections=1),
        Kind("one connection, labels", PLAIN, ("/models/labelled/predict",), connections=1),
    ]  # fmt: skip


@dataclass
class Figures:
    """The results of a kind."""

    cpu_us: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    hot: list[float] = field(default_factory=list)


def models(workload: Workload) -> Path:
    """Return the folder of models, made if need be."""
    folder = BUILD / "lane"
    source = model_folder(workload) / workload.model / "1" / "model.onnx"
    names = ["sole", "split", "sticky", "shadowed"]
    wanted = [
        ("mlp", "1"),
        ("labelled", "1"),
        *((name, version) for name in names for version in "12"),
    ]
    wanted += [(f"copy-{number:03}", "1") for number in range(COPIES)]
    for name, version in wanted:
        target = folder / "models" / name / version / "model.onnx"
        if not target.exists():
            target.parent.mkdir(parents=True)
            shutil.copy(source, target)
    (folder / "models/labelled/config.yaml").write_text(LABELS)
    (folder / "rollouts.yaml").write_text(ROLLOUTS)
    return folder


def start(checkout: Path, settings: Mapping[str, str]) -> Running:
    """Start the server; it is warm when this returns."""
    workload = next(one for one in WORKLOADS if one.name == "mlp")
    folder = models(workload)
    cohort = SERVERS["cohort"]

    def begin(workload: Workload, models: Path, port: int, run: Path) -> Start:
        began = cohort.start(workload, models, port, run)
        own = {
            "PYTHONPATH": source_path(checkout),
            "COHORT_ROLLOUTS": str(folder / "rollouts.yaml"),
            "COHORT_DEFAULT_MODEL": "mlp",
        }
        return replace(began, folder=checkout, environment={**began.environment, **own, **settings})

    name = f"cohort-lane-{checkout.name}"
    running = launch(replace(cohort, name=name, start=begin), workload, folder / "models")
    running.wait()
    return running


def ask(kind: Kind, url: str, folder: Path, seconds: float) -> load.Heard:
    """Send for some seconds; return the results. Raises RuntimeError where a request failed."""
    calls = folder / re.sub(r"\W+", "-", kind.name)
    if not calls.exists():
        load.list_calls(calls, kind.script, kind.calls())
    heard = load.ask_by_wrk(calls, url, kind.connections, seconds)
    if heard["refused"] or heard["errors"] or not heard["requests"]:
        raise RuntimeError(f"{kind.name}: {heard}")
    return heard


def one_round(running: Running, kind: Kind, seconds: float) -> tuple[load.Heard, float]:
    """Send for some seconds; return the results, and how many cores others used."""
    return load.watched(running, lambda: ask(kind, running.url, running.log.parent, seconds))


def measure(
    running: Running, chosen: Sequence[Kind], found: Mapping[str, Figures], *,
    rounds: int, seconds: float, keep_all: bool,
) -> int:  # fmt: skip
    """Measure every kind in turn, and add it to `found`; how many measurements were dropped."""
    plain = chosen[0]
    dropped = 0
    for kind in chosen:
        one_round(running, kind, 1)  # warm
    for number in track(range(rounds), "rounds"):
        order = chosen[1:] if number % 2 else chosen[:0:-1]
        for kind in order:
            base, busy_before = one_round(running, plain, seconds)
            heard, busy = one_round(running, kind, seconds)
            if max(busy, busy_before) > FOREIGN_CORES and not keep_all:
                dropped += 1
                continue
            found[plain.name].cpu_us.append(base["cpu_us"])
            found[plain.name].rates.append(base["requests"] / base["seconds"])
            found[plain.name].hot.append(base["hot"])
            figures = found[kind.name]
            figures.cpu_us.append(heard["cpu_us"])
            figures.rates.append(heard["requests"] / heard["seconds"])
            figures.hot.append(heard["hot"])
            figures.ratios.append(heard["cpu_us"] / base["cpu_us"])
    return dropped


COLUMNS = ("kind", "CPU, µs", "range", "of plain", "range", "requests/s", "fast")


def cells(found: Mapping[str, Figures]) -> Iterator[list[str]]:
    """Yield the rows of the table, as COLUMNS names them."""
    for name, figures in found.items():
        if not figures.cpu_us:
            yield [name, "every round was dropped", *[""] * (len(COLUMNS) - 2)]
            continue
        ratios = figures.ratios or [1.0]
        yield [
            name,
            f"{statistics.median(figures.cpu_us):.1f}",
            f"{min(figures.cpu_us):.1f} to {max(figures.cpu_us):.1f}",
            f"{statistics.median(ratios):.2f}",
            f"{min(ratios):.2f} to {max(ratios):.2f}",
            f"{statistics.median(figures.rates):,.0f}",
            f"{min(statistics.median(figures.hot), 1):.0%}",
        ]


def write(found: Mapping[str, Figures], title: str) -> None:
    """Write results/lane.md."""
    says = (
        "The CPU time is the server's per request, with its ratio to the plain kind in the same "
        "round.\n`fast` is the share that the fast HTTP protocol answered."
    )
    report.write_page(
        RESULT, "Cost of each kind of request", says, "python -m benchmarks.lane --write",
        title, report.markdown(COLUMNS, list(cells(found))),
    )  # fmt: skip


@click.command()
@click.option("--checkout", type=click.Path(exists=True, file_okay=False, path_type=Path),
              default=ROOT, help="Checkout of the server; default: this one.")  # fmt: skip
@click.option("--only", default="", help="Kinds whose names this expression finds.")
@click.option("--rounds", default=5, show_default=True, help="Measurements of each kind.")
@click.option("--seconds", default=2.0, show_default=True, help="Length of a round.")
@click.option("--keep-all", is_flag=True, help="Keep rounds in which others used the machine.")
@click.option("--runs", default=1, show_default=True, help="Servers, one after the other.")
@click.option("--write", "writes", is_flag=True, help="Write results/lane.md.")
@click.option("--setting", "settings", multiple=True, help="NAME=VALUE for the server.")
def main(
    checkout: Path, only: str, rounds: int, seconds: float, keep_all: bool, runs: int,
    writes: bool, settings: Sequence[str],
) -> None:  # fmt: skip
    """Measure what each kind of request costs."""
    if problem := load.missing():
        raise click.ClickException(problem)
    every = kinds()
    chosen = [every[0], *(kind for kind in every[1:] if re.search(only, kind.name))]
    found = {kind.name: Figures() for kind in chosen}
    dropped = 0
    for _ in range(runs):
        running = start(checkout.resolve(), dict(one.split("=", 1) for one in settings))
        try:
            dropped += measure(
                running, chosen, found, rounds=rounds, seconds=seconds, keep_all=keep_all
            )
        finally:
            running.stop()
    title = (
        f"{runs} runs of {rounds} rounds of {seconds:g} s each; "
        f"{dropped} measurements dropped, because others used the machine"
    )
    table = Table(*COLUMNS, title=title)
    for row in cells(found):
        table.add_row(*row)
    Console(width=120).print(table)
    if writes:
        write(found, title)


if __name__ == "__main__":
    main()
