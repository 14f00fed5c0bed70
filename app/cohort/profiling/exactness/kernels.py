"""ONNX Runtime kernels that round a row depending on its run: a table that `make rounding` writes.

The table has only CPU kernels. If it has no part for this build and machine, a kernel counts if it
rounds that way in any part.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from cohort.session import ORT_VERSION

TABLE = Path(__file__).with_name("kernels.json")

CPUINFO = Path("/proc/cpuinfo")

INSTRUCTIONS = ("avx512f", "avx2", "avx", "sse4_1", "sve", "asimd")
"""Instruction sets by which ONNX Runtime chooses kernels, the best first."""


Way = Literal["place", "alone", "address"]


class RoundingKernel(NamedTuple):
    """A kernel that rounds a row depending on its run.

    kernel: The name that `kernel_of` gives it.
    by: The cause: "place" (in a run, and the run's size), "alone" (a single row) or "address" (of
        the input).
    difference: The largest relative difference measured.
    node: A description of the first node of a model that it computes; default "": no model.
    """

    kernel: str
    by: Way
    difference: float
    node: str = ""

    def __str__(self) -> str:
        return (
            f"{self.node or self.kernel} rounds a row {_WORDS[self.by]} (up to "
            f"{self.difference:g} of a value in other models)"
        )


_WORDS: Mapping[Way, str] = {
    "place": "by its place in a run",
    "alone": "in another way when it is alone",
    "address": "by where in memory its input is",
}


def instruction_set(cpuinfo: Path = CPUINFO) -> str:
    """Return Linux's name of the best instruction set of this machine; "" if unknown."""
    try:
        text = cpuinfo.read_text(encoding="utf-8")
    except OSError:
        return ""
    lines = (line.partition(":") for line in text.splitlines())
    flags = {
        flag
        for key, _, value in lines
        if key.strip() in ("flags", "Features")
        for flag in value.split()
    }
    return next((one for one in INSTRUCTIONS if one in flags), "")


def rounding_kernels(
    kernels: Mapping[str, str], *, several: bool, build: tuple[str, str] | None = None
) -> list[RoundingKernel]:
    """Return a model's kernels that round a row depending on its run, the worst first.

    kernels: The kernels that compute with rows, each with a description of its first node:
        `RowVerdict.kernels`.
    several: True if a run has several threads.
    build: The version of ONNX Runtime and the instruction set; default: those of this process.

    A kernel that was not tried counts as the worst tried kernel of the same operator.
    """
    build = build or (ORT_VERSION, instruction_set())
    exact = [part for part in _table() if (part["runtime"], part["instructions"]) == build]
    parts = exact or _table()
    known: dict[tuple[str, Way], RoundingKernel] = {}
    for one in _entries(parts, several=several):
        before = known.get((one.kernel, one.by), one)
        known[one.kernel, one.by] = max(one, before, key=lambda each: each.difference)
    tried = {kernel for part in parts for kernel in part["tried"]}
    found = [
        one._replace(kernel=kernel, node=node)
        for kernel, node in kernels.items()
        for one in known.values()
        if one.kernel == kernel
        or (kernel not in tried and _operator(one.kernel) == _operator(kernel))
    ]
    return sorted(found, key=lambda one: one.difference, reverse=True)


def _entries(parts: Sequence[Mapping[str, Any]], *, several: bool) -> Iterator[RoundingKernel]:
    for part in parts:
        for one in part["rounding"]:
            if (one["threads"] > 1) == several:
                yield RoundingKernel(one["kernel"], one["by"], one["difference"])


def _operator(kernel: str) -> str:
    return kernel.partition(" ")[0]


@cache
def _table() -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = json.loads(TABLE.read_text(encoding="utf-8"))
    return found
