"""Jobs that quantize and measure, each in a separate process (`JobRunner`).

Arguments and results are dataclasses as JSON, and paths as text.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

from pydantic import validate_call
from pydantic_core import to_jsonable_python

from cohort.session import Provider, open_session
from cohort.system.job_child import report
from cohort.tensors import Arrays
from cohort_prepare.quantizing.building import build, needs_data_file, pre_process
from cohort_prepare.quantizing.measuring import MAX_ROWS, MeasuredPair, Opened, measure_pair
from cohort_prepare.quantizing.quality import Quality
from cohort_prepare.quantizing.ranges import find_ranges
from cohort_prepare.quantizing.recipes import GraphFacts, Method, Recipe, excluding
from cohort_prepare.quantizing.samples import read_samples
from cohort_prepare.quantizing.search import SearchResult, search_nodes
from cohort_prepare.quantizing.verdict import Limits, why_unacceptable

RANKING_ROWS = 128
"""Rows on which the noise of a node is measured."""


@dataclass(frozen=True, slots=True)
class Build:
    """A recipe to apply (see `build`) to a model, and rows to compare outputs on."""

    recipe: Recipe
    prepared: Path
    original: Path
    ranges: Path
    out: Path
    samples: Path | None
    labels: Path | None

    def apply(self, recipe: Recipe, out: Path) -> None:
        """Write the model of another recipe to `out`."""
        build(recipe, self.prepared, self.original, self.ranges, out)


def _job(function: Callable[..., object]) -> Callable[..., Any]:
    """Make a function accept and return JSON values."""
    checked = validate_call(function)

    @wraps(function)
    def done(**arguments: object) -> Any:
        return to_jsonable_python(checked(**arguments))

    return done


@_job
def read_graph(model: Path, out: Path) -> GraphFacts:
    """Prepare `model` for all recipes; see `pre_process`."""
    return pre_process(model, out)


@_job
def calibrate(prepared: Path, samples: Path, methods: tuple[Method, ...], folder: Path) -> int:
    """Find ranges (see `find_ranges`); return the number of rows."""
    inputs = open_session(prepared, chain=(Provider("cpu"),)).inputs

    def batches() -> Iterator[Arrays]:
        return read_samples(samples, inputs)

    external = needs_data_file(prepared)
    return find_ranges(prepared, batches, methods, folder, external=external, on_progress=report)


@_job
def build_and_compare(building: Build) -> Quality:
    """Apply a recipe; return the quality of its outputs."""
    building.apply(building.recipe, building.out)
    return Opened(building.original, building.out, building.samples, building.labels).compare()


@_job
def measure(building: Build) -> MeasuredPair:
    """Measure a built model against its original; see `measure_pair`."""
    return measure_pair(building.original, building.out, building.samples, building.labels, report)


@_job
def search(building: Build, nodes: tuple[str, ...], limits: Limits, seconds: float) -> SearchResult:
    """Find nodes to exclude (see `search_nodes`); models are built next to `out`."""

    def compare(excluded: Sequence[str], labels: Path | None, rows: int) -> Quality:
        with tempfile.TemporaryDirectory(dir=building.out.parent) as name:
            out = Path(name) / "model.onnx"
            building.apply(excluding(building.recipe, excluded), out)
            return Opened(building.original, out, building.samples, labels).compare(rows)

    def noise_of(nodes: Sequence[str]) -> float:
        quality = compare(nodes, None, RANKING_ROWS)
        return float("inf") if quality.broken else quality.noise

    def acceptable(nodes: Sequence[str]) -> bool:
        return not why_unacceptable(compare(nodes, building.labels, MAX_ROWS), limits)

    return search_nodes(nodes, noise_of, acceptable, seconds=seconds, on_progress=report)
