"""Measure, and write the tables into the page: see __init__.py."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.first_hour.mistakes import AT_START, IN_REQUESTS, Mistake
from benchmarks.first_hour.tables import tables
from benchmarks.servers import free_port

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ENVIRONMENTS = ROOT / "build/first-hour"
PAGE = ROOT / "docs/reports/first-hour.md"
MARK = "<!-- Written by make first-hour-table from here on. -->\n"
MODEL = ROOT / "models/iris/1/model.onnx"
RUNTIME = "onnxruntime==1.31.1"

STARTING = 60.0
"""Seconds after which a server that has not answered counts as one that never will."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server, with its installation and start.

    `file` is what the user writes; Cohort needs none.
    """

    name: str
    file: str = ""
    package: str = ""
    module: str = ""

    def install(self) -> Path:
        """Make its environment, unless it is there, and give the folder of its programs."""
        if not self.package:
            return ROOT / ".venv-cpu/bin"
        folder = ENVIRONMENTS / self.package.partition("=")[0]
        if not (folder / "done").exists():
            subprocess.run(["python3", "-m", "venv", "--clear", folder], check=True)
            subprocess.run([folder / "bin/pip", "install", "-q", self.package, RUNTIME], check=True)
            (folder / "done").touch()
        return folder / "bin"

    def lines(self) -> int:
        """Lines that the user writes, without the empty ones; there are no comments in them."""
        lines = (HERE / self.file).read_text().splitlines() if self.file else []
        return sum(bool(line.strip()) for line in lines)

    def prepare(self, folder: Path, port: int) -> Path:
        """Put down what it serves; the path where its model file belongs."""
        if not self.file:
            (folder / "models/iris/1").mkdir(parents=True)
            return folder / "models/iris/1/model.onnx"
        (folder / "server.py").write_text((HERE / self.file).read_text().replace("8000", str(port)))
        return folder / "model.onnx"

    def command(self, programs: Path, port: int) -> list[str]:
        if not self.file:
            return [str(programs / "cohort"), "serve"]
        if self.package.startswith("litserve"):
            return [str(programs / "python"), "server.py"]
        return [str(programs / "bentoml"), "serve", "server:Iris", "--port", str(port)]

    @property
    def path(self) -> str:
        return "/predict" if self.file else "/models/iris/predict"

    def body(self, name: str, features: str) -> bytes:
        inputs = f'{{"{name}": {features}}}'
        return (inputs if self.file else f'{{"inputs": {inputs}}}').encode()


SERVERS = (
    Server("Cohort"),
    Server("LitServe", "lit_server.py", "litserve==0.2.19"),
    Server("BentoML", "bento_service.py", "bentoml==1.4.39"),
    Server("BentoML, typed", "bento_typed.py", "bentoml==1.4.39"),
)


PACKAGES = sorted({server.package for server in SERVERS} - {""})


@dataclass(slots=True)
class Running:
    """A server that was started, and perhaps has ended since."""

    server: Server
    process: subprocess.Popen[bytes]
    url: str
    log: Path
    started: float

    def ask(self, mistake: Mistake | None = None) -> httpx.Response:
        """Send a request; the right one without a mistake."""
        wrong = mistake or Mistake("none", ())
        body = wrong.body
        if body is None:
            body = self.server.body(wrong.name, wrong.features)
        return httpx.request(
            wrong.method,
            self.url + (wrong.path or self.server.path),
            content=None if wrong.method == "GET" else body,
            headers={} if wrong.method == "GET" else {"Content-Type": wrong.content_type},
            timeout=30,
        )

    def first_answer(self) -> tuple[float, httpx.Response | None]:
        """Send until an answer is not 503; return seconds since the start, and the last answer."""
        last = None
        while self.process.poll() is None and time.monotonic() - self.started < STARTING:
            with suppress(httpx.TransportError):
                last = self.ask()
                if last.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                    break
            time.sleep(0.01)
        return time.monotonic() - self.started, last

    def settled(self) -> httpx.Response | None:
        """Wait until it has ended, or has logged nothing for 5 s; then its answer, if any."""
        size, since = -1, time.monotonic()
        while self.process.poll() is None and time.monotonic() - self.started < STARTING / 2:
            if (now := self.log.stat().st_size) != size:
                size, since = now, time.monotonic()
            elif size and time.monotonic() - since > 5:
                break
            time.sleep(0.2)
        try:
            return self.ask()
        except httpx.TransportError:
            return None


@contextmanager
def started(server: Server, content: bytes | None) -> Iterator[Running]:
    """Start a server in a separate folder, with `content` for its model file, if any."""
    programs, port = server.install(), free_port()
    with tempfile.TemporaryDirectory(prefix="first-hour-") as name:
        folder = Path(name)
        model = server.prepare(folder, port)
        if content is not None:
            model.write_bytes(content)
        others = {name: value for name, value in os.environ.items() if "COHORT_" not in name}
        own = {
            "COHORT_PORT": str(port), "COHORT_GRPC_PORT": "0", "COHORT_STATE": f"{name}/state",
            "COHORT_CACHE": f"{name}/cache", "BENTOML_DO_NOT_TRACK": "True", "HOME": name,
        }  # fmt: skip
        log = folder / "log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                server.command(programs, port), cwd=folder, stdin=subprocess.DEVNULL, stdout=file,
                stderr=file, start_new_session=True, env={**others, **own},
            )  # fmt: skip
        try:
            yield Running(server, process, f"http://127.0.0.1:{port}", log, time.monotonic())
        finally:
            for wish in (signal.SIGTERM, signal.SIGKILL):
                with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                    os.killpg(process.pid, wish)
                    process.wait(15)


def seconds_to_answer(rounds: int) -> dict[str, list[float]]:
    """From the start of the command to the first answer, in turns, from nothing each time."""
    found: dict[str, list[float]] = {server.name: [] for server in SERVERS}
    for _ in range(rounds):
        for server in SERVERS:
            with started(server, MODEL.read_bytes()) as running:
                seconds, answer = running.first_answer()
                if answer is None or answer.status_code != httpx.codes.OK:
                    raise RuntimeError(f"{server.name}: {running.log.read_text()[-2000:]}")
                found[server.name].append(seconds)
    return found


def requests_answered(server: Server) -> Iterator[dict[str, object]]:
    """Yield a server's answer to each mistake in a request."""
    with started(server, MODEL.read_bytes()) as running:
        running.first_answer()
        for mistake in IN_REQUESTS:
            try:
                answer = running.ask(mistake)
                status, said = str(answer.status_code), answer.text
            except httpx.TransportError as error:
                status, said = "no answer", str(error)
            refused = status.startswith("4")
            yield outcome(server, mistake.what, status, said, refused, mistake.words)


def starts_answered(server: Server) -> Iterator[dict[str, object]]:
    """Yield a server's reaction to each broken model file: its answer, or its end, and its log."""
    for broken in AT_START:
        content = MODEL.read_bytes()[: broken.start] if broken.start else broken.content
        with started(server, content) as running:
            answer = running.settled()
            ended = running.process.poll()
            status = "never answers" if answer is None else str(answer.status_code)
            if ended is not None:
                status = f"ends with {ended}"
            said = explanation(running.log.read_text(errors="replace"), broken.words)
        yield outcome(server, broken.what, status, said, status != "200", broken.words)


def explanation(log: str, words: Sequence[str]) -> str:
    """Return the line of a log that explains, or else its last one of an error."""
    lines = [line for line in map(plain, log.splitlines()) if "InferenceSession(" not in line]
    errors = [line for line in lines if re.search("rror|problem|onnx", line)] or [""]
    return next((line for line in errors if any(word in line for word in words)), errors[-1])


def plain(line: str) -> str:
    """Return a line of a log without colours; what went wrong alone where the line is JSON."""
    line = re.sub(r"\x1b\[[0-9;]*m", "", line).strip()
    if line.startswith("{"):
        fields = json.loads(line)
        said = fields.get("problem") or fields.get("reason") or fields.get("error") or ""
        return f"{fields['event']}: {said}"
    return line


def outcome(
    server: Server, what: str, status: str, said: str, refused: bool, words: Sequence[str]
) -> dict[str, object]:
    explained = refused and any(word in said for word in words)
    return {
        "server": server.name, "what": what, "status": status, "said": said[:1000],
        "explained": explained,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_hour")
    parser.add_argument("--rounds", type=int, default=7, help="starts of each server")
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.relative_to(ROOT)}")
    arguments = parser.parse_args()
    for server in SERVERS:
        server.install()
    found = [one for server in SERVERS for one in requests_answered(server)]
    found += [one for server in SERVERS for one in starts_answered(server)]
    times = seconds_to_answer(arguments.rounds)
    ENVIRONMENTS.mkdir(parents=True, exist_ok=True)
    record = {"seconds": times, "mistakes": found}
    (ENVIRONMENTS / "beside.json").write_text(json.dumps(record, indent=1))
    lines = {server.name: server.lines() for server in SERVERS}
    text = tables(lines, times, found, f"{RUNTIME}, {', '.join(PACKAGES)}".replace("==", " "))
    print(text)
    if arguments.write:
        PAGE.write_text(PAGE.read_text().partition(MARK)[0] + MARK + "\n" + text)


if __name__ == "__main__":
    main()
