"""Decide from measurements if a step is kept, and describe the reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cohort_prepare.evaluating.timing import Comparison, Ratio
from cohort_prepare.optimizing.choices import OptimizeStep
from cohort_prepare.optimizing.measuring import MeasuredChange


@dataclass(frozen=True, slots=True)
class Footprint:
    """Size of a model: bytes with external data, and nodes of its main graph."""

    size: int
    nodes: int


@dataclass(frozen=True, slots=True)
class StepVerdict:
    """Decision to keep a step or not, and the reason."""

    kept: bool
    why: str


SMALLER = 0.99
"""Maximum size ratio that counts as smaller."""


def judge_step(
    step: OptimizeStep,
    before: Footprint,
    after: Footprint,
    measured: MeasuredChange,
    *,
    asked: bool,
) -> StepVerdict:
    """Keep a step if outputs match, no batch size is slower, and size or speed improves.

    A requested step only needs matching outputs. A lossy step must make runs faster.
    """
    if measured.problem:
        return StepVerdict(False, measured.problem)
    runs, load = measured.runs, measured.load
    slower = [_times(rows, one.ratio) for rows, one in runs.items() if one.ratio.slower]
    if load is not None and load.ratio.slower and not _faster(runs):
        slower.append(f"to load ({load.ratio.median:.2f}x the time)")
    if slower:
        text = "slower " + ", ".join(slower)
        return StepVerdict(asked, f"requested, though {text}" if asked else text)
    gains = list(_gains(before, after, runs, load))
    if step.lossy and not asked and not _faster(runs):
        return StepVerdict(False, "not faster, and loses precision" + _also(gains))
    if not gains:
        return StepVerdict(asked, "requested, no gain" if asked else "no gain")
    return StepVerdict(True, ", ".join(gains))


def _faster(runs: Mapping[int, Comparison]) -> list[str]:
    return [_times(rows, one.ratio) for rows, one in runs.items() if one.ratio.faster]


def _gains(
    before: Footprint, after: Footprint, runs: Mapping[int, Comparison], load: Comparison | None
) -> Iterator[str]:
    if faster := _faster(runs):
        yield "faster " + ", ".join(faster)
    if load is not None and load.ratio.faster:
        yield f"faster to load ({load.ratio.median:.2f}x the time)"
    if after.size < before.size * SMALLER:
        yield f"{1 - after.size / before.size:.0%} smaller"
    if after.nodes < before.nodes:
        fewer = before.nodes - after.nodes
        yield f"{fewer} node{'s' * (fewer != 1)} fewer"


def _times(rows: int, ratio: Ratio) -> str:
    return f"with {rows} row{'s' * (rows != 1)} ({ratio.median:.2f}x the time)"


def _also(gains: list[str]) -> str:
    return f" ({', '.join(gains)})" if gains else ""
