"""The bare loop: `session.run` in a separate process, without any server.

    python -m benchmarks.bare MODEL.onnx REQUESTS.npz SECONDS [BATCH INSTANCES THREADS]

With no shape given it tries batches and threads, a moment each, and prints all it measured. One
instance is one Python thread that runs its session again and again on the requests in turn.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
from collections.abc import Iterator
from itertools import chain
from time import perf_counter, process_time

import numpy as np
import onnxruntime as ort

BATCHES = (1, 4, 16, 64, 256)
MOMENT = 0.4


def shapes() -> Iterator[tuple[int, int, int]]:
    """Batch, instances and threads of each."""
    cores = os.cpu_count() or 1
    for batch in BATCHES:
        yield from ((batch, 1, 1), (batch, 1, cores), (batch, cores, 1))


class Loop:
    """Sessions on one model, and requests grown to a batch."""

    def __init__(self, model: str, requests: str, batch: int, instances: int, threads: int) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        self.sessions = [
            ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
            for _ in range(instances)
        ]
        with np.load(requests) as kept:
            single: dict[int, dict[str, np.ndarray]] = {}
            for key in kept.files:
                number, _, name = key.partition("/")
                single.setdefault(int(number), {})[name] = kept[key]
        self.feeds = [
            {name: np.repeat(array, batch, axis=0) for name, array in single[number].items()}
            for number in sorted(single)
        ]
        self.batch = batch

    def run(self, seconds: float) -> dict[str, float]:
        """Run for that long; rows a second, seconds a run, processor time a row."""
        for session in self.sessions:
            session.run(None, self.feeds[0])
        took: list[list[float]] = [[] for _ in self.sessions]
        until = perf_counter() + seconds

        def turn(number: int) -> None:
            session, mine, at = self.sessions[number], took[number], number
            now = perf_counter()
            while now < until:
                session.run(None, self.feeds[at % len(self.feeds)])
                at += len(took)
                mine.append(-now + (now := perf_counter()))

        start, used = perf_counter(), process_time()
        others = [threading.Thread(target=turn, args=(n,)) for n in range(1, len(self.sessions))]
        for one in others:
            one.start()
        turn(0)
        for one in others:
            one.join()
        elapsed, used = perf_counter() - start, process_time() - used
        every = sorted(chain.from_iterable(took))
        rows = len(every) * self.batch
        return {
            "rate": rows / elapsed,
            "p50": every[len(every) // 2],
            "p99": every[int(len(every) * 0.99)],
            "cpu_us": used / rows * 1e6,
            "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }


def main() -> None:
    """Print what was measured as JSON."""
    model, requests, seconds, *shape = sys.argv[1:]
    if shape:
        batch, instances, threads = map(int, shape)
        print(json.dumps(Loop(model, requests, batch, instances, threads).run(float(seconds))))
        return
    tried: list[dict[str, float]] = []
    slowest = 0.0
    for batch, instances, threads in shapes():
        if batch > 1 and slowest * batch > 2:
            continue  # a run would take seconds, and no batch that long is worth waiting for
        heard = Loop(model, requests, batch, instances, threads).run(MOMENT)
        if batch == 1:
            slowest = max(slowest, heard["p50"])
        tried.append({"batch": batch, "instances": instances, "threads": threads, **heard})
    print(json.dumps(tried))


if __name__ == "__main__":
    main()
