"""The servers side by side: how each is installed, started, checked, paused and stopped."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx
import numpy as np

from benchmarks import usage
from benchmarks.workloads import (
    Ask,
    Call,
    Inputs,
    Workload,
    ask_binary,
    ask_cohort,
    ask_simply,
    ask_v2,
    read_answer,
)

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "bench"
OTHERS = Path(__file__).parent / "others"


@dataclass
class Start:
    """The command of a server."""

    command: Sequence[str]
    environment: Mapping[str, str]
    folder: Path = ROOT
    rpc_port: int = 0


@dataclass(frozen=True)
class Server:
    """A server that can be started on a model and a port."""

    name: str
    start: Callable[[Workload, Path, int, Path], Start]
    ask: Ask
    ready: str = "/health"
    packages: tuple[str, ...] = ()
    node_packages: tuple[str, ...] = ()
    binary: bool = False

    def python(self) -> str:
        """The interpreter of its environment, made on demand. Raises RuntimeError if it cannot."""
        if not self.packages:
            return sys.executable
        return str(python_with(self.name, self.packages))

    def node_folder(self) -> Path:
        """Return the folder of its npm packages, made on demand. Raises RuntimeError."""
        return node_with(self.name, self.node_packages)


def python_with(name: str, packages: Sequence[str]) -> Path:
    """Return the Python of an environment, made on demand. Raises RuntimeError if it cannot."""
    uv, python = find_uv(), BUILD / f"env-{name}" / "bin" / "python"
    install_once(python.parent / "installed", packages, [
        [uv, "venv", "-q", "--clear", "--python", sys.executable, str(python.parents[1])],
        [uv, "pip", "install", "-q", "--python", str(python), *packages],
    ])  # fmt: skip
    return python


def node_with(name: str, packages: Sequence[str], *options: str) -> Path:
    """Return a folder of npm packages, made on demand. Raises RuntimeError if it cannot.

    options: Further options of `npm install`.

    Without their install scripts: onnxruntime-node has the CPU libraries in its package, and its
    script would fetch those for CUDA from elsewhere.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise RuntimeError("not installed: there is no npm")
    folder = BUILD / f"env-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    install_once(folder / "installed", packages, [
        [npm, "install", "--prefix", str(folder), "--ignore-scripts", "--no-audit", "--no-fund",
         *options, *packages],
    ])  # fmt: skip
    return folder


def find_uv() -> str:
    """Return the machine's own uv, else the one of this checkout."""
    return shutil.which("uv") or str(ROOT / ".tools/bin/uv")


def install_once(stamp: Path, packages: Sequence[str], commands: Sequence[Sequence[str]]) -> None:
    """Run the commands, once for these packages. Raises RuntimeError where one fails."""
    wanted = " ".join(packages)
    if stamp.exists() and stamp.read_text() == wanted:
        return
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"not installed: {done.stderr.strip()[-300:]}")
    stamp.write_text(wanted)


@dataclass
class Running:
    """A started server."""

    server: Server
    workload: Workload
    process: subprocess.Popen[bytes]
    port: int
    log: Path
    rpc_port: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait(self, seconds: float = 120) -> None:
        """Until it is ready. Raises RuntimeError where it ends or takes too long."""
        path = self.server.ready.format(model=self.workload.model)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.process.poll() is not None:
                break
            try:
                if httpx.get(self.url + path, timeout=5).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        raise RuntimeError(f"did not start: {self.log.read_text()[-500:]}")

    def check(self, expected: Sequence[np.ndarray]) -> None:
        """Ask each request once and compare with ONNX Runtime in process. Raises RuntimeError."""
        for inputs, right in zip(self.workload.requests(), expected, strict=True):
            call = self.server.ask(self.workload, inputs)
            answer = httpx.post(
                self.url + call.path, content=call.body, headers=dict(call.headers), timeout=60
            )
            if answer.status_code != 200:
                raise RuntimeError(f"answered {answer.status_code}: {answer.text[:300]}")
            given = read_answer(answer.headers, answer.content).reshape(right.shape)
            if not np.allclose(given, right, rtol=1e-3, atol=1e-3 * max(1, np.abs(right).max())):
                raise RuntimeError(f"answered wrongly, off by {np.abs(given - right).max():.3g}")

    def pause(self) -> None:
        """Stand still while others are measured, so that idle work costs them nothing."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for folder in usage.processes(self.process.pid):  # only our own processes
            with suppress(ProcessLookupError):
                os.kill(int(folder.name), number)

    def settle(self, seconds: float = 20) -> None:
        """Wait until it has finished the rest of the load."""
        until = time.monotonic() + seconds
        used = usage.cpu_seconds(self.process.pid)
        while time.monotonic() < until:
            time.sleep(0.25)
            before, used = used, usage.cpu_seconds(self.process.pid)
            if used - before <= 0.025:
                return

    def metric(self, name: str) -> float | None:
        """Return the sum of a metric of Cohort's over its labels, None if it is absent."""
        try:
            text = httpx.get(self.url + "/metrics", timeout=5).text
        except httpx.TransportError:
            return None
        values = [
            float(line.rsplit(" ", 1)[1])
            for line in text.splitlines()
            if line.startswith((name + "{", name + " "))
        ]
        return sum(values) if values else None

    def stop(self) -> None:
        """End every process of it."""
        if self.process.poll() is None:
            self.resume()
            os.killpg(self.process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(15)
        self._signal(signal.SIGKILL)
        self.process.wait()


def launch(server: Server, workload: Workload, models: Path) -> Running:
    """Start a server on the folder of a model; `wait` for it before asking."""
    port = free_port()
    folder = BUILD / "run" / f"{server.name}-{workload.name}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    start = server.start(workload, models, port, folder)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COHORT_")}
    log = folder / "log.txt"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            start.command, env={**kept, "ORT_DISABLE_TELEMETRY": "1", **start.environment},
            cwd=start.folder, stdout=stream, stderr=stream, start_new_session=True,
        )  # fmt: skip
    return Running(server, workload, process, port, log, start.rpc_port)


def free_port() -> int:
    """Return a port that is not in use now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def model_file(models: Path, workload: Workload) -> Path:
    return models / workload.model / "1" / "model.onnx"


def source_path(checkout: Path) -> str:
    """Return PYTHONPATH for a checkout's code, including one with the command next to `app`."""
    return os.pathsep.join([str(checkout), str(checkout / "app")])


def _cohort(_: Workload, models: Path, port: int, folder: Path) -> Start:
    rpc_port = free_port()
    environment = {
        "PYTHONPATH": source_path(ROOT),
        "COHORT_MODELS": str(models),
        "COHORT_PORT": str(port),
        "COHORT_GRPC_PORT": str(rpc_port),
        "COHORT_STATE": str(folder / "state"),
        "COHORT_CACHE": str(folder / "cache"),
        "COHORT_DRAIN_NOTICE_SECONDS": "0",
    }
    return Start([COHORT.python(), "-m", "cohort", "serve"], environment, rpc_port=rpc_port)


def _tutorial(workload: Workload, models: Path, port: int, _: Path) -> Start:
    command = [
        TUTORIAL.python(), "-m", "uvicorn", "benchmarks.others.tutorial:app", "--port", str(port),
        "--loop", "uvloop", "--http", "httptools", "--no-access-log",
    ]  # fmt: skip
    return Start(command, {"MODEL": str(model_file(models, workload))})


def _raw(workload: Workload, models: Path, port: int, _: Path) -> Start:
    command = [
        RAW.python(), "-m", "uvicorn", "benchmarks.others.raw:app", "--port", str(port),
        "--loop", "uvloop", "--http", "httptools", "--lifespan", "off", "--no-access-log",
    ]  # fmt: skip
    return Start(command, {"MODEL": str(model_file(models, workload))})


def _bun(workload: Workload, models: Path, port: int, _: Path) -> Start:
    bun = BUN.node_folder() / "node_modules" / "@oven" / "bun-linux-x64" / "bin" / "bun"
    return _javascript(BUN, str(bun), workload, models, port)


def _fastify(workload: Workload, models: Path, port: int, _: Path) -> Start:
    return _javascript(FASTIFY, "node", workload, models, port)


def _javascript(server: Server, runtime: str, workload: Workload, models: Path, port: int) -> Start:
    script = shutil.copy(OTHERS / "javascript.mjs", server.node_folder())  # next to its packages
    environment = {"MODEL": str(model_file(models, workload)), "PORT": str(port)}
    return Start([runtime, str(script)], environment)


def _ask_triton(workload: Workload, inputs: Inputs) -> Call:
    return (ask_binary if workload.binary else ask_v2)(workload, inputs)


def _triton(workload: Workload, models: Path, port: int, folder: Path) -> Start:
    python = Path(TRITON.python())
    packages = next((python.parents[1] / "lib").glob("python3*/site-packages"))
    wheel = packages / "pytriton" / "tritonserver"
    backends = folder / "backends"
    shutil.copytree(wheel / "backends", backends)
    stubs = wheel / "python_backend_stubs" / packages.parent.name.removeprefix("python")
    shutil.copy(stubs / "triton_python_backend_stub", backends / "python")
    model = folder / "models" / workload.model
    (model / "1").mkdir(parents=True)
    shutil.copy(OTHERS / "triton_model.py", model / "1" / "model.py")
    (model / "config.pbtxt").write_text('backend: "python"\n')
    libraries = [str(packages / "nvidia_pytriton.libs"), sysconfig.get_config_var("LIBDIR")]
    environment = {
        "MODEL": str(model_file(models, workload)),
        "LD_LIBRARY_PATH": ":".join(libraries),
        "PACKAGES": str(packages),
    }
    rpc_port = free_port()
    command = [
        str(wheel / "bin" / "tritonserver"), "--model-repository", str(folder / "models"),
        "--backend-directory", str(backends), "--http-port", str(port), "--http-address",
        "127.0.0.1", "--grpc-port", str(rpc_port), "--grpc-address", "127.0.0.1",
        "--allow-metrics", "false",
    ]  # fmt: skip
    return Start(command, environment, rpc_port=rpc_port)


def _litserve(workload: Workload, models: Path, port: int, _: Path) -> Start:
    environment = {"MODEL": str(model_file(models, workload)), "PORT": str(port)}
    return Start([LITSERVE.python(), str(OTHERS / "lit.py")], environment)


def _mlserver(workload: Workload, models: Path, port: int, folder: Path) -> Start:
    shutil.copy(OTHERS / "mls.py", folder / "mls.py")
    (folder / "settings.json").write_text(json.dumps({
        "host": "127.0.0.1", "http_port": port, "grpc_port": free_port(),
        "metrics_port": free_port(),
    }))  # fmt: skip
    (folder / "model-settings.json").write_text(json.dumps({
        "name": workload.model, "implementation": "mls.OnnxRuntime",
        "parameters": {"uri": str(model_file(models, workload))},
    }))  # fmt: skip
    command = [str(Path(MLSERVER.python()).parent / "mlserver"), "start", str(folder)]
    return Start(command, {"PYTHONPATH": str(folder)})


def _floor(_: Workload, __: Path, port: int, ___: Path) -> Start:
    return Start([sys.executable, str(OTHERS / "floor.py")], {"PORT": str(port)})


COHORT = Server("cohort", _cohort, ask_cohort, ready="/health/ready", binary=True)
TUTORIAL = Server("tutorial", _tutorial, ask_simply)
LITSERVE = Server(
    "litserve",
    _litserve,
    ask_simply,
    packages=("litserve==0.2.19", "onnxruntime==1.31.1", "uvloop", "httptools"),
)
MLSERVER = Server(
    "mlserver", _mlserver, ask_v2, ready="/v2/models/{model}/ready",
    packages=("mlserver==1.7.1", "onnxruntime==1.31.1", "uvloop<0.22"),  # 0.22 ends its workers
)  # fmt: skip
RAW = Server("raw-asgi", _raw, ask_simply)
BUN = Server(
    "bun", _bun, ask_simply, node_packages=("@oven/bun-linux-x64@1.4.5", "onnxruntime-node@1.30.0")
)
FASTIFY = Server(
    "fastify", _fastify, ask_simply, node_packages=("fastify@5.12.8", "onnxruntime-node@1.30.0")
)
TRITON = Server(
    "triton-python", _triton, _ask_triton, ready="/v2/models/{model}/ready", binary=True,
    packages=("nvidia-pytriton==0.7.0", "onnxruntime==1.31.1"),
)  # fmt: skip
FLOOR = Server("floor", _floor, ask_simply)
"""The cost of connections and callers alone: it answers every request with a constant."""

SERVERS = {
    one.name: one for one in (COHORT, TUTORIAL, RAW, LITSERVE, MLSERVER, BUN, FASTIFY, TRITON)
}


def cohort_of(name: str, checkout: Path, settings: Mapping[str, str]) -> Server:
    """Return Cohort as in a checkout, with settings added to the benchmark's own."""

    def start(workload: Workload, models: Path, port: int, folder: Path) -> Start:
        began = _cohort(workload, models, port, folder)
        environment = {**began.environment, "PYTHONPATH": source_path(checkout), **settings}
        return replace(began, folder=checkout, environment=environment)

    return replace(COHORT, name=f"cohort-{name}", start=start)
