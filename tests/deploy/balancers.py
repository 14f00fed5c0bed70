"""The shipped nginx and HAProxy in front of real replicas, and callers that never ask twice."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
import ssl
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import (
    AbstractContextManager,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from threading import Thread
from typing import Any, NamedTuple

import httpx

from tests.deploy.test_files import PATH
from tests.e2e.processes import ROOT, Cohort, cohort, end, free_port
from tests.e2e.scrape import Scrape
from tests.waiting import PATIENCE, wait_until

MISSING = "this test needs {}: apt-get install --no-install-recommends nginx-light haproxy"

Change = Callable[[str], str]
Start = Callable[..., AbstractContextManager["Balancer"]]


@dataclass
class Balancer:
    """A started balancer; `log` holds a line for each request, once it is written."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path
    grpc_port: int
    metrics_port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def program(name: str) -> str:
    """Return the path of an installed balancer."""
    found = shutil.which(name, path=PATH)
    assert found, MISSING.format(name)
    return found


def swap(text: str, old: str, new: str) -> str:
    """Replace what has to be there."""
    assert old in text, old
    return text.replace(old, new)


def with_replicas(text: str, ports: Sequence[int], grpc: Sequence[int] = ()) -> str:
    """Other addresses for the three of the shipped file."""
    for number, (port, other) in enumerate(zip(ports, grpc or ports, strict=True), 1):
        text = swap(text, f"10.0.0.{number}:8000", f"127.0.0.1:{port}")
        text = swap(text, f"10.0.0.{number}:8001", f"127.0.0.1:{other}")
    seen: set[str] = set()
    kept = []
    for line in text.splitlines(keepends=True):  # one replica may stand for all, but in a map once
        if not (re.fullmatch(r" *127[\d.:]+ 127[\d.:]+;\n", line) and line in seen):
            kept.append(line)
        seen.add(line)
    return "".join(kept)


@contextmanager
def nginx(
    ports: Sequence[int], folder: Path, change: Change = str, *, grpc: Sequence[int] = ()
) -> Iterator[Balancer]:
    """The shipped configuration with other addresses, ports and paths, and `change` on top."""
    started, folder = Ports(free_port(), free_port(), free_port()), folder / "nginx"
    shutil.copytree(ROOT / "deploy/nginx", folder)
    for file in folder.iterdir():
        text = file.read_text()
        if file.name == "upstreams.conf":
            text = with_replicas(text, ports, grpc)
        if file.name == "nginx.conf":
            for old, new in (
                ("/run/", f"{folder}/"),
                ("/var/log/nginx/", f"{folder}/"),
                ("listen 80;", f"listen 127.0.0.1:{started.http};"),
                ("listen 8001 ", f"listen 127.0.0.1:{started.grpc} "),
            ):
                text = swap(text, old, new)
        file.write_text(change(text))
    command = [program("nginx"), "-c", str(folder / "nginx.conf"), "-e", str(folder / "start.log")]
    log = folder / "access.log"
    with running([*command, "-g", "daemon off;"], started, log) as balancer:
        yield balancer


@contextmanager
def haproxy(
    ports: Sequence[int], folder: Path, change: Change = str, *, grpc: Sequence[int] = ()
) -> Iterator[Balancer]:
    """The shipped configuration with other addresses and ports, and `change` on top."""
    started, folder = Ports(free_port(), free_port(), free_port()), folder / "haproxy"
    folder.mkdir(parents=True)
    text = with_replicas((ROOT / "deploy/haproxy/haproxy.cfg").read_text(), ports, grpc)
    text = swap(text, "bind :80\n", f"bind 127.0.0.1:{started.http}\n")
    text = swap(text, "bind :8001 ", f"bind 127.0.0.1:{started.grpc} ")
    text = swap(text, "bind :8404\n", f"bind 127.0.0.1:{started.metrics}\n")
    file = folder / "haproxy.cfg"
    file.write_text(change(text))
    command = [program("haproxy"), "-db", "-f", str(file)]
    with running(command, started, folder / "log") as balancer:
        yield balancer


class Ports(NamedTuple):
    """The ports of a balancer."""

    http: int
    grpc: int
    metrics: int


@contextmanager
def running(command: Sequence[str], ports: Ports, log: Path) -> Iterator[Balancer]:
    """Start a balancer in the foreground, wait for it, and end it."""
    printed = log.parent / "printed"
    with (log if log.name == "log" else printed).open("wb") as out, printed.open("ab") as errors:
        process = subprocess.Popen(command, stdout=out, stderr=errors)
    try:

        def answers() -> bool:
            assert process.poll() is None, printed.read_text()
            try:
                # The balancer answers this one without a replica.
                response = httpx.get(f"http://127.0.0.1:{ports.http}/metrics")
            except httpx.TransportError:
                return False
            assert response.status_code == 404
            return True

        wait_until(answers)
        yield Balancer(process, ports.http, log, ports.grpc, ports.metrics)
    finally:
        end(process)


class Fleet:
    """Three replicas of the same models, each on a separate port for as long as it lives."""

    def __init__(self, models: Path, folder: Path, **settings: Any) -> None:
        self.ports = [free_port() for _ in range(3)]
        self.grpc_ports = [free_port() for _ in range(3)]
        self.replicas: dict[int, Cohort] = {}
        self._models, self._folder, self._settings = models, folder, settings
        self._open: dict[int, ExitStack] = {}

    def start(self, number: int) -> None:
        """Start one and wait until it is ready."""
        folder = self._folder / f"replica-{number}"
        folder.mkdir(exist_ok=True)
        stack = self._open[number] = ExitStack()
        self.replicas[number] = stack.enter_context(
            cohort(
                self._models,
                folder,
                port=self.ports[number],
                grpc_port=self.grpc_ports[number],
                drain_notice_seconds=1.5,
                admin_token="secret",
                **self._settings,
            )
        )

    def end(self, number: int, *, kill: int = signal.SIGTERM) -> int:
        """End one, and give its exit status."""
        with self._open.pop(number):
            return self.replicas.pop(number).stop(kill=kill)

    def asked(self, number: int) -> int:
        """Return how many predictions one replica has answered since it started."""
        scrape = Scrape(self.replicas[number].url)
        return int(scrape.value("model_inference_total", code="OK"))

    def close(self) -> None:
        """End all."""
        for stack in self._open.values():
            stack.close()


@contextmanager
def fleet(models: Path, folder: Path, **settings: Any) -> Iterator[Fleet]:
    """Three replicas, ready; `settings` are those of `cohort`."""
    started = Fleet(models, folder, **settings)
    try:
        for number in range(3):
            started.start(number)
        yield started
    finally:
        started.close()


PAUSE = 0.03
"""Seconds between an answer and a caller's next request: what the machine has is for replicas."""


@dataclass
class Calls:
    """Counts of answers by version and by kind of caller, and of failed calls."""

    versions: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def call(self, port: int, body: bytes, *, kind: str, reuse: bool) -> None:
        """Ask again and again, over one connection or over a new one each time."""

        def answered(status: str, text: bytes, _: str) -> None:
            if status == "200":
                self.versions[json.loads(text)["version"]] += 1
                self.kinds[kind] += 1
            else:
                self.failed[f"{kind}: {status} {text[:200]!r}"] += 1

        def lost(error: Exception) -> None:
            self.failed[f"{kind}: {error!r}"] += 1

        await ask_until(
            self.over,
            lambda: ("127.0.0.1", port),
            body,
            reuse,
            Limits(PATIENCE, PAUSE),
            answered=answered,
            lost=lost,
        )


class Limits(NamedTuple):
    """The seconds that an answer may take, and those between an answer and the next request."""

    answer: float
    pause: float


async def ask_until(
    over: asyncio.Event,
    where: Callable[[], tuple[str, int]],
    body: bytes,
    reuse: bool,
    limits: Limits,
    *,
    answered: Callable[[str, bytes, str], None],
    lost: Callable[[Exception], None],
) -> None:
    """Post a body to `/predict` again and again, and never the same request twice.

    where: Returns the address of a new connection.
    reuse: True for one connection as long as it lasts; False for a new one each time.
    answered: Called with the status, the body and the address of each answer.
    lost: Called with the error of each request that got no answer.
    """
    head = f"POST /predict HTTP/1.1\r\nhost: cohort\r\ncontent-length: {len(body)}\r\n"
    request = (head + ("" if reuse else "connection: close\r\n") + "\r\n").encode() + body
    streams, address = None, ("", 0)
    while not over.is_set():
        again = False
        try:
            async with asyncio.timeout(limits.answer):
                if streams is None:
                    address = where()
                    streams = await asyncio.open_connection(*address)
                reader, writer = streams
                writer.write(request)
                answer = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(answer.split(b"content-length: ")[1].split(b"\r", 1)[0])
                text = await reader.readexactly(length)
            answered(answer[9:12].decode(), text, address[0])
            again = reuse and b"connection: close" not in answer
        except (OSError, EOFError, IndexError, TimeoutError) as error:
            lost(error)
        if streams and not again:
            await close(streams[1])
            streams = None
        with suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), limits.pause)
    if streams:
        await close(streams[1])


async def close(writer: asyncio.StreamWriter) -> None:
    """Close a connection, which may be broken already."""
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


@asynccontextmanager
async def calling(port: int, bodies: dict[str, bytes]) -> AsyncIterator[Calls]:
    """Ask with each body over reused and new connections while the block runs."""
    calls = Calls()
    async with asyncio.TaskGroup() as tasks:
        for name, body in bodies.items():
            for reuse in (True, False):
                kind = f"{name}, {'reused' if reuse else 'new'}"
                for _ in range(2):
                    tasks.create_task(calls.call(port, body, kind=kind, reuse=reuse))
        try:
            yield calls
        finally:
            calls.over.set()


@contextmanager
def answering(handler: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    """Run a server that answers with `handler`; yield its port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def saying(answer: bytes, port: int = 0, *, tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """Run a server that sends `answer` to any request and closes the connection; yield its port.

    tls: Its TLS context; by default it does not use TLS.
    """

    class Say(BaseRequestHandler):
        def handle(self) -> None:
            plain = self.request
            with (
                suppress(OSError),  # the client may not read to the end
                tls.wrap_socket(plain, server_side=True) if tls else plain as connection,
            ):
                connection.recv(65536)
                connection.sendall(answer)

    class Server(ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True

    with Server(("127.0.0.1", port), Say) as server:
        thread = Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()
