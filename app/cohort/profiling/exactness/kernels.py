"""Which kernels of ONNX Runtime round a row by its run: a table that `make rounding` writes.

It is of the CPU's kernels. Where it has no part for this build and this machine, a kernel counts
that rounds so in any part.
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
"""By which ONNX Runtime chooses kernels, the best first."""


Way = Literal["place", "alone", "address"]


class RoundingKernel(NamedTuple):
    """A kernel that rounds a row by its run.

    kernel: What `kernel_of` calls it.
    by: What counts: the "place" in a run and its size; whether the row is "alone"; the "address" of
        the input.
    difference: The largest relative difference seen.
    node: The first node of a model that it computes, in words; default "": of no model.
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
    """The best set of instructions that this machine has, as Linux names it; "" if unknown."""
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
    """Those of a model's kernels that round a row by its run, the worst first.

    kernels: What computes with rows, each with its first node, in words: `RowVerdict.kernels`.
    several: Whether a run has several threads.
    build: The version of ONNX Runtime, and the set of instructions; default: these here.

    A kernel that was not tried counts as the worst one of its operator that was.
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
