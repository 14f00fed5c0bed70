"""Processor time of reading and writing: `python -m benchmarks.codec`.

Processor time in microseconds, the best of several rounds, so that neighbours on the machine count
little. Cohort's codecs are compared with orjson with numpy, and the standard library's json with
numpy.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import numpy as np
import orjson
from rich.console import Console
from rich.table import Table

from cohort.codec import (
    PredictRequest,
    decode_inputs,
    encode_prediction,
    encode_simple,
    from_bytes,
    to_bytes,
)
from cohort.tensors import BY_NAME, Array, TensorSpec

ROUNDS, ROUND_SECONDS = 9, 0.03


def cost(call: Callable[[], object]) -> float:
    """Measure a call's processor time, in microseconds."""
    call()
    start = time.perf_counter()
    call()
    times = max(int(ROUND_SECONDS / (time.perf_counter() - start)), 1)
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.thread_time()
        for _ in range(times):
            call()
        best = min(best, (time.thread_time() - start) / times)
    return best * 1e6


def reading(title: str, datatype: str, array: Array) -> tuple[str, int, list[float]]:
    dtype = BY_NAME[datatype].dtype
    values = array.tolist() if dtype == np.object_ else array
    body = orjson.dumps({"inputs": {"x": values}}, option=orjson.OPT_SERIALIZE_NUMPY)
    specs = [TensorSpec("x", datatype, ("N", *array.shape[1:]))]
    ours = cost(lambda: decode_inputs(PredictRequest.parse(body), specs))
    quick = cost(lambda: np.array(orjson.loads(body)["inputs"]["x"], dtype))
    plain = cost(lambda: np.array(json.loads(body)["inputs"]["x"], dtype))
    return title, len(body), [ours, quick, plain]


def writing(title: str, array: Array, *, simple: bool = False) -> tuple[str, int, list[float]]:
    write = encode_simple if simple else encode_prediction

    def ours() -> bytes:
        return write(
            model="m",
            version="1",
            variant=None,
            id=None,
            outputs={"y": array},
            inference_time=0.00031,
        )

    def by_hand() -> dict[str, object]:
        return {
            "model": "m",
            "version": "1",
            "outputs": {"y": array.tolist()},
            "inference_time_ms": 0.31,
        }

    costs = [cost(ours), cost(lambda: orjson.dumps(by_hand()))]
    return title, len(ours()), [*costs, cost(lambda: json.dumps(by_hand()).encode())]


def main() -> None:
    """Print the table."""
    rng = np.random.default_rng(0)
    image = rng.random((1, 3, 224, 224), dtype=np.float32)
    words = np.array([f"word {number}" for number in range(100)], np.object_)
    packed = bytes(to_bytes(image))
    rows = [
        *(
            reading(f"read FP32 {list(shape)}", "FP32", rng.random(shape, dtype=np.float32))
            for shape in ((1, 10), (10, 10), (1, 150), (1, 400), (150, 4), (10_000, 4))
        ),
        reading("read FP32 [1, 3, 224, 224]", "FP32", image),
        reading("read INT64 [1, 128]", "INT64", rng.integers(0, 30_000, (1, 128))),
        reading("read INT64 [32, 128]", "INT64", rng.integers(0, 30_000, (32, 128))),
        reading("read BYTES [100]", "BYTES", words),
        ("read FP32 bytes [1, 3, 224, 224]", len(packed), [
            cost(lambda: from_bytes(packed, "FP32", image.shape)),
            cost(lambda: np.frombuffer(packed, np.float32).reshape(image.shape)),
        ]),
        writing("write FP32 [1, 5]", rng.random((1, 5), dtype=np.float32)),
        writing("write FP32 [1, 5], simple", rng.random((1, 5), dtype=np.float32), simple=True),
        writing("write FP32 [1, 1000]", rng.random((1, 1000), dtype=np.float32)),
        writing("write INT64 [1]", np.array([3])),
        writing("write BYTES [100]", words),
    ]  # fmt: skip
    table = Table(title="Codecs, µs of processor time")
    table.add_column("what")
    for column in ("JSON or raw bytes", "Cohort", "orjson + numpy", "json + numpy"):
        table.add_column(column, justify="right")
    for title, size, costs in rows:
        table.add_row(title, f"{size:,}", *(f"{one:,.2f}" for one in costs))
    Console().print(table)


if __name__ == "__main__":
    main()
