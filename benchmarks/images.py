"""From a JPEG to a label, against a program of one's own: `python -m benchmarks.images`.

A photograph of 640 x 480, resized, cropped and normalized to [1, 3, 224, 224], and a network that
takes next to no time. The other is FastAPI with Pillow and, where `--python` names an interpreter
that has them, torchvision's transforms (others/pictures.py). In turns, all in one run; the medians.
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
from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import httpx
import numpy as np
from onnx import TensorProto, helper, numpy_helper, save
from PIL import Image

from benchmarks.pipelines import processor_seconds

CONFIG = """\
inputs:
  image:
    image:
      {resize: shorter_side_then_crop, shorter_side: 256,
       mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}
outputs: {scores: {labels: labels.txt}}
"""


def write_model(folder: Path) -> Path:
    """A network of one pooling and one dense layer, with its config and labels."""
    random = np.random.default_rng(0)
    weights = random.standard_normal((147, 10)).astype(np.float32) / 20
    nodes = [
        helper.make_node("AveragePool", ["image"], ["p"], kernel_shape=[32, 32], strides=[32, 32]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "w"], ["m"]),
        helper.make_node("Softmax", ["m"], ["scores"]),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "pictures",
        [info("image", TensorProto.FLOAT, ["N", 3, 224, 224])],
        [info("scores", TensorProto.FLOAT, ["N", 10])],
        [numpy_helper.from_array(weights, "w")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    version = folder / "pictures/1"
    version.mkdir(parents=True)
    save(model, version / "model.onnx")
    labels = "\n".join(f"class {number}" for number in range(10))
    (version / "labels.txt").write_text(labels, encoding="utf-8")
    (folder / "pictures/config.yaml").write_text(CONFIG, encoding="utf-8")
    return version / "model.onnx"


def photograph(width: int, height: int) -> bytes:
    """A JPEG with soft patches and grain."""
    random = np.random.default_rng(0)
    coarse = random.integers(0, 256, (height // 20, width // 20, 3), np.uint8)
    soft = np.asarray(Image.fromarray(coarse).resize((width, height))).astype(np.int16)
    pixels = np.clip(soft + random.integers(-12, 12, soft.shape), 0, 255).astype(np.uint8)
    file = BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=90)
    return file.getvalue()


@contextlib.contextmanager
def started(command: list[str], environment: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """A server; its address and process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [*command, "--port", str(port)], env={**os.environ, **environment},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
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


async def turn(url: str, body: bytes, callers: int, seconds: float) -> list[float]:
    """How long each request took, all callers together."""
    took: list[float] = []
    until = time.perf_counter() + seconds

    async def caller() -> None:
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            while (began := time.perf_counter()) < until:
                answer = await client.post(
                    "/predict", content=body, headers={"content-type": "image/jpeg"}
                )
                assert answer.raise_for_status().text.count("class ") == 1, answer.text
                took.append(time.perf_counter() - began)

    await asyncio.gather(*[caller() for _ in range(callers)])
    return took


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--size", type=int, nargs=2, default=[640, 480])
    parser.add_argument("--python", default=sys.executable, help="has FastAPI, and torchvision")
    options = parser.parse_args()
    body = photograph(*options.size)
    print(f"JPEG of {options.size[0]} x {options.size[1]}, {len(body):,} bytes")
    print(f"| {'server':32} | callers | requests/s | CPU ms each | p50 ms | p99 ms |")
    print("|---|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        model = write_model(folder / "models")
        ours = [sys.executable, "-m", "cohort", "serve", "--models", str(folder / "models")]
        other = [options.python, "-m", "uvicorn", "pictures:app", "--app-dir", "benchmarks/others"]
        kept = {"COHORT_STATE": str(folder / "state"), "COHORT_CACHE": str(folder / "cache")}
        cohort = stack.enter_context(started([*ours, "--grpc-port", "0"], kept))
        fastapi = stack.enter_context(
            started([*other, "--log-level", "warning"], {"MODEL": str(model)})
        )
        what = httpx.get(f"{fastapi[0]}/health/ready").json()["with"]
        servers = {"Cohort": cohort, f"FastAPI, {what}": fastapi}
        for callers in options.callers:
            compare(servers, body, callers, options)


def compare(
    servers: Mapping[str, tuple[str, int]], body: bytes, callers: int, options: Any
) -> None:
    """Measure each server in turns, and print its line."""
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in servers}
    for _ in range(options.rounds):
        for name, (url, pid) in servers.items():
            before = processor_seconds(pid)
            took = asyncio.run(turn(url, body, callers, options.seconds))
            spent = processor_seconds(pid) - before
            cuts = quantiles(took, n=100)
            rate = len(took) / options.seconds
            found[name].append((rate, spent / len(took) * 1e3, cuts[49] * 1e3, cuts[98] * 1e3))
    for name, turns in found.items():
        rate, spent, half, p99 = (median(each) for each in zip(*turns, strict=True))
        print(f"| {name:32} | {callers} | {rate:.0f} | {spent:.2f} | {half:.1f} | {p99:.1f} |")


if __name__ == "__main__":
    main()
