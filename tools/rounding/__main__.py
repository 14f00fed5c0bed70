"""Run each kernel with a row alone, twice, and in company, and write down which round it otherwise.

The table is kernels.json in `cohort.profiling.exactness`, one part for each build of ONNX Runtime
and set of instructions. A run replaces the part of this machine.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
from rich.progress import track

from cohort.batching import Outputs, RowPlan, aligned
from cohort.comparing import SAME_BITS, Pair, compare
from cohort.model_file.model import parse_model
from cohort.profiling.exactness import TABLE, instruction_set
from cohort.row_independence import ALIGNMENT, RowVerdict, prove_rows
from tools.prove.contrib_cases import contrib_cases
from tools.prove.experiment import Array, Row
from tools.prove.node_cases import node_cases
from tools.rounding.sized_cases import HELPERS, sized_cases

SIZES = (2, 3, 5, 8, 16, 31, 32)
"""Rows of the runs that are tried."""

THREADS = (1, 2)

NODE_TRIALS = 8
"""Number of draws of rows of a node test, two to five each time."""

WAYS = ("place", "alone", "address")
"""Ways of rounding.

`place`: by the place in a run and its size; `alone`: in another way for a single row; `address`: by
the input's memory address.
"""

OFFSET = 4
"""Bytes behind the beginning of a vector."""

SMALLEST = 1e-17
"""Recorded for a difference that is zero by value, such as 0 from -0."""

SILENT = 4


@dataclass(slots=True)
class Kernel:
    """The results of an operator's kernels.

    cases: Number of kernels that were run.
    seen: The largest relative difference, by one of WAYS and by threads.
    """

    cases: int = 0
    seen: dict[str, dict[int, float]] = field(default_factory=lambda: {way: {} for way in WAYS})


Kernels = dict[str, Kernel]


def main(arguments: list[str] | None = None) -> int:
    """Try all kernels, and write the part of the table for this machine."""
    parser = argparse.ArgumentParser("make rounding", description=__doc__)
    parser.add_argument("--print", action="store_true", help="print the part, and write nothing")
    parser.add_argument(
        "--instructions",
        default=instruction_set(),
        help="those of the processor, where /proc/cpuinfo is another one's: in an emulator",
    )
    chosen = parser.parse_args(arguments)
    kernels = try_kernels(track)
    part = {
        "runtime": onnxruntime.__version__,
        "instructions": chosen.instructions,
        "tried": {name: kernels[name].cases for name in sorted(kernels)},
        "rounding": _rounding(kernels),
    }
    if chosen.print:
        sys.stdout.write(json.dumps(part, indent=1) + "\n")
        return 0
    place = part["runtime"], part["instructions"]
    table = json.loads(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else []
    table = [one for one in table if (one["runtime"], one["instructions"]) != place] + [part]
    TABLE.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    return 0


def _rounding(kernels: Kernels) -> list[dict[str, Any]]:
    """Return those that round a row by its run, with the way, for each number of threads."""
    found = []
    for name in sorted(kernels):
        for threads in THREADS:
            seen = {by: each[threads] for by, each in kernels[name].seen.items() if threads in each}
            for by in WAYS:
                if by in seen and not (by == "alone" and "place" in seen):
                    difference = float(f"{seen[by]:.1g}")
                    one = {"kernel": name, "by": by, "threads": threads, "difference": difference}
                    found.append(one)
    return found


def try_kernels(shown: Callable[..., Any] = lambda cases, **_: cases) -> Kernels:
    """Run all cases. `shown` reports the progress of a list."""
    kernels: Kernels = {}
    for sized in shown(list(sized_cases()), description="sizes"):
        try_case(kernels, sized.model, sized.draw(max(SIZES)), {"x": 0}, sized.operator)
    for node in shown([*node_cases(), *contrib_cases()], description="node tests"):
        rows = [row for trial in range(NODE_TRIALS) for row in node.draw(trial)]
        try_case(kernels, node.model, rows, node.axes)
    return kernels


def try_case(
    kernels: Kernels,
    model: onnx.ModelProto,
    rows: Sequence[Row],
    axes: Any,
    operator: str = "",
) -> None:
    """Run one model, and add what was seen of the one kernel that computes with its rows.

    operator: That of the kernel; default: any but HELPERS.
    """
    content = model.SerializeToString()
    verdict = prove_rows(parse_model(memoryview(content)).graphs, guesses=[axes])
    found = [
        kernel
        for kernel in verdict.kernels
        if (name := kernel.partition(" ")[0]) not in HELPERS or name == operator
    ]
    if not verdict.independent or len(found) != 1:
        return
    kernel = kernels.setdefault(found[0], Kernel())
    for threads in THREADS:
        if _try_threads(kernel, content, verdict, rows, threads):
            kernel.cases += 1


def _try_threads(
    kernel: Kernel, content: bytes, verdict: RowVerdict, rows: Sequence[Row], threads: int
) -> bool:
    """Return True if the model runs so."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, SILENT
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        names = [one.name for one in session.get_outputs()]
        plan = RowPlan(verdict.inputs, [verdict.outputs[name] for name in names])

        def run(some: Sequence[Row]) -> list[Outputs]:
            joined = plan.join([dict(one) for one in some])
            return plan.split(session.run(None, aligned(joined.feeds)), [1] * len(some), joined)

        alone = [session.run(None, aligned(dict(row))) for row in rows]
        twice = [run([row, row]) for row in rows]
        elsewhere = [session.run(None, _shifted(row)) for row in rows[:3]]
        together = [run(rows[:size]) for size in SIZES if size <= len(rows)]
    except Exception:  # noqa: BLE001  of an operator that is not in the runtime, or not so
        return False
    for row, (first, second) in enumerate(twice):
        others = [second, *[parts[row] for parts in together if row < len(parts)]]
        _note(kernel.seen["alone"], threads, [alone[row]] * len(others), others)
        _note(kernel.seen["place"], threads, [first] * len(others), others)
    _note(kernel.seen["address"], threads, alone[:3], elsewhere)
    return True


def _shifted(row: Row) -> dict[str, Array]:
    """Return the same, with numbers that begin within a vector."""
    shifted = {}
    for name, array in row.items():
        if array.dtype.hasobject:
            shifted[name] = array
            continue
        offset = max(OFFSET, array.itemsize)
        room = np.empty(array.nbytes + 2 * ALIGNMENT, np.uint8)
        start = -room.ctypes.data % ALIGNMENT + offset
        shifted[name] = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        shifted[name][...] = array
    return shifted


def _note(
    differences: dict[int, float], threads: int, expected: Sequence[Outputs], got: Sequence[Outputs]
) -> None:
    """Keep the largest relative difference, where bits differ."""
    pairs = [
        Pair(dict(enumerate(one)), dict(enumerate(other)))  # type: ignore[arg-type]
        for one, other in zip(expected, got, strict=True)
    ]
    for found in compare(pairs, SAME_BITS):
        for one in found:
            if one.disagrees:
                relative = one.relative if one.relative is not None else 0.0
                differences[threads] = max(differences.get(threads, 0.0), relative, SMALLEST)


if __name__ == "__main__":
    sys.exit(main())
