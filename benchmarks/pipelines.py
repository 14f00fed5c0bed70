"""Two steps of a pipeline against two requests over HTTP: `python -m benchmarks.pipelines`.

One server, one client process with `--callers` connections, in turns; the medians of the turns,
and their ratios. The processor time is the server's.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from statistics import median, quantiles

import httpx
import numpy as np
from onnx import TensorProto, helper, numpy_helper, save

WIDTH = 16
PIPELINE = """\
steps:
  first: {model: first, inputs: {x: x}}
  second: {model: second, inputs: {x: first.y}}
outputs: {y: {from: second.y}}
"""

Ask = Callable[[httpx.AsyncClient], Awaitable[None]]


def write_models(folder: Path) -> None:
    """Two small dense layers, and the pipeline of both."""
    numbers = np.random.default_rng(0)
    for name in ("first", "second"):
        weights = numbers.standard_normal((WIDTH, WIDTH)).astype(np.float32)
        ends = [helper.make_tensor_value_info(end, TensorProto.FLOAT, ["N", WIDTH]) for end in "xy"]
        graph = helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["y"])], name, ends[:1], ends[1:],
            [numpy_helper.from_array(weights, "w")],
        )  # fmt: skip
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        (folder / name / "1").mkdir(parents=True)
        save(model, folder / name / "1/model.onnx")
    (folder / "both").mkdir()
    (folder / "both/pipeline.yaml").write_text(PIPELINE, encoding="utf-8")


@contextlib.contextmanager
def served(folder: Path) -> Iterator[tuple[str, int]]:
    """Yield a server of the models; its address and process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ, "COHORT_STATE": str(folder / "state"), "COHORT_CACHE": str(folder / "cache"),
    }  # fmt: skip
    command = [sys.executable, "-m", "cohort", "serve", "--models", str(folder / "models")]
    process = subprocess.Popen(
        [*command, "--port", str(port), "--grpc-port", "0"],
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        url = f"http://127.0.0.1:{port}"
        while True:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{url}/health/ready").status_code == 200:
                    break
            time.sleep(0.1)
        time.sleep(3)  # for the measurements in idle moments
        yield url, process.pid
    finally:
        process.terminate()
        process.wait()


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def turn(url: str, ask: Ask, callers: int, seconds: float) -> list[float]:
    """Return the seconds of each request, all callers together."""
    took: list[float] = []
    until = time.perf_counter() + seconds

    async def caller() -> None:
        async with httpx.AsyncClient(base_url=url) as client:
            while (began := time.perf_counter()) < until:
                await ask(client)
                took.append(time.perf_counter() - began)

    await asyncio.gather(*[caller() for _ in range(callers)])
    return took


async def _post(client: httpx.AsyncClient, model: str, x: object) -> object:
    answer = await client.post(f"/models/{model}/predict", json={"inputs": {"x": x}})
    return answer.raise_for_status().json()["outputs"]["y"]


ROW = [[0.5] * WIDTH]


async def ask_pipeline(client: httpx.AsyncClient) -> None:
    """One request for both steps."""
    await _post(client, "both", ROW)


async def ask_twice(client: httpx.AsyncClient) -> None:
    """A request for each step."""
    await _post(client, "second", await _post(client, "first", ROW))


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--callers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    ways: dict[str, Ask] = {"pipeline": ask_pipeline, "two requests": ask_twice}
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_models(folder / "models")
        with served(folder) as (url, pid):
            for _ in range(options.rounds):
                for way, ask in ways.items():
                    before = processor_seconds(pid)
                    took = asyncio.run(turn(url, ask, options.callers, options.seconds))
                    spent = processor_seconds(pid) - before
                    p99 = quantiles(took, n=100)[98]
                    each = len(took) / options.seconds, spent / len(took) * 1e6, p99 * 1000
                    found[way].append(each)
    print(f"{'':14}{'answers/s':>11}{'server µs each':>16}{'p99 ms':>9}")
    middle = {
        name: [median(each) for each in zip(*some, strict=True)] for name, some in found.items()
    }
    for name, (rate, spent, p99) in middle.items():
        print(f"{name:14}{rate:>11.0f}{spent:>16.0f}{p99:>9.1f}")
    one, other = middle["pipeline"], middle["two requests"]
    rate, spent, p99 = (a / b for a, b in zip(one, other, strict=True))
    print(f"{'ratio':14}{rate:>11.2f}{spent:>16.2f}{p99:>9.2f}")


if __name__ == "__main__":
    main()
