"""Rows a second of `cohort score`, a pandas loop and HTTP: `python -m benchmarks.score`.

A model of scikit-learn's size (32 columns, dense layers) and files of 32 columns. Each way starts
from a file and ends with a file, in a separate process; its imports and the model's load count.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import onnxruntime
import pandas as pd

from tests import onnx_models
from tests.e2e.processes import Cohort, cohort

COLUMNS = [f"c{place}" for place in range(32)]
CHUNK = 1024
AT_ONCE = 8


def main() -> None:
    """Measure each way, and print a table in Markdown. With an argument: go one way."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rows", type=int, default=200_000)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--way", choices=WAYS)
    options.add_argument("--folder", type=Path)
    options.add_argument("--url")
    given = options.parse_args()
    if given.way:
        WAYS[given.way](given.folder, given.url)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = onnx_models.mlp(features=32, hidden=64, classes=1, layers=2)
        onnx_models.save(model, folder / "models/wide/1/model.onnx")
        random = np.random.default_rng(0).normal(size=(given.rows, 32)).astype(np.float32)
        frame = pd.DataFrame(random.round(4), columns=COLUMNS)
        frame.to_csv(folder / "rows.csv", index=False)
        frame.to_parquet(folder / "rows.parquet", index=False)
        with cohort(folder / "models", folder) as server:
            show(folder, server, given.rows, given.rounds)


def show(folder: Path, server: Cohort, rows: int, rounds: int) -> None:
    print("| way | rows | rows/s |\n|---|---:|---:|")
    for name in WAYS:
        count = min(rows, 20_000) if name == "HTTP, a row a call" else rows
        rates = []
        for _ in range(rounds):
            began = time.perf_counter()
            if name.startswith("cohort score"):
                kind = name.rpartition(" ")[2]
                command = ["-m", "cohort", "score", f"rows.{kind}", "--model", "wide"]
                command += ["--out", f"out.{kind}", "--columns", ",".join(COLUMNS)]
            else:
                command = ["-m", "benchmarks.score", "--way", name, "--folder", str(folder)]
                command += ["--url", server.url]
            where = folder if name.startswith("cohort") else None
            subprocess.run([sys.executable, *command], check=True, cwd=where, capture_output=True)
            rates.append(count / (time.perf_counter() - began))
        print(f"| {name} | {count:,} | {min(rates):,.0f} to {max(rates):,.0f} |")


def loop(folder: Path, kind: str) -> None:
    """Read with pandas, run in chunks, write."""
    path = folder / f"rows.{kind}"
    frame = pd.read_csv(path) if kind == "csv" else pd.read_parquet(path)
    session = onnxruntime.InferenceSession(str(folder / "models/wide/1/model.onnx"))
    parts = [
        session.run(None, {"x": frame[at : at + CHUNK].to_numpy(np.float32)})[0][:, 0]
        for at in range(0, len(frame), CHUNK)
    ]
    frame["y"] = np.concatenate(parts)
    out = folder / f"loop.{kind}"
    frame.to_csv(out, index=False) if kind == "csv" else frame.to_parquet(out, index=False)


async def calls(folder: Path, url: str, rows: int, most: int) -> None:
    """Send `.npy` bodies of `rows` rows, AT_ONCE at a time, and write the answers."""
    frame = pd.read_csv(folder / "rows.csv", nrows=most or None)
    numbers = frame.to_numpy(np.float32)
    free = asyncio.Semaphore(AT_ONCE)

    async with httpx.AsyncClient(base_url=url, timeout=60) as client:

        async def ask(at: int) -> list[list[float]]:
            body = io.BytesIO()
            np.save(body, numbers[at : at + rows])
            async with free:
                answer = await client.post(
                    "/models/wide/predict",
                    content=body.getvalue(),
                    headers={"content-type": "application/x-npy"},
                )
            found: list[list[float]] = answer.json()["prediction"]
            return found

        parts = await asyncio.gather(*(ask(at) for at in range(0, len(numbers), rows)))
    frame["y"] = [row[0] for part in parts for row in part]
    frame.to_csv(folder / "calls.csv", index=False)


WAYS: dict[str, Callable[[Path, str], None]] = {
    "cohort score csv": lambda *_: None,
    "cohort score parquet": lambda *_: None,
    "pandas loop csv": lambda folder, _: loop(folder, "csv"),
    "pandas loop parquet": lambda folder, _: loop(folder, "parquet"),
    "HTTP, 1024 rows a call": lambda folder, url: asyncio.run(calls(folder, url, CHUNK, 0)),
    "HTTP, a row a call": lambda folder, url: asyncio.run(calls(folder, url, 1, 20_000)),
}


if __name__ == "__main__":
    main()
