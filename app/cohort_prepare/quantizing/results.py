"""Options and results of quantization."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from cohort_prepare.quantizing.measuring import MeasuredPair, ModelMeasurement
from cohort_prepare.quantizing.quality import Quality
from cohort_prepare.quantizing.recipes import (
    CALIBRATION_METHODS,
    Family,
    GraphFacts,
    Method,
    Recipe,
    recipe_name,
)
from cohort_prepare.quantizing.search import SearchResult
from cohort_prepare.quantizing.verdict import Limits


@dataclass(frozen=True, slots=True)
class QuantizeOptions:
    """Options of quantization.

    recipe: A family of recipes, or "auto" (default) for all.
    calibration: Rows for the static recipe, for `read_samples`; default None.
    inputs: Rows to measure on; default None: the calibration's, or generated ones.
    labels: Correct answers for the rows to measure on, a `.npy`; default None.
    limits: Allowed loss of quality.
    methods: Calibration methods, of which the one with the closest outputs is used; default all.
    seven_bits: True for 7-bit weights; default None: if this processor needs it.
    search_seconds: Time limit of the search for nodes to exclude; default 60; 0: no search.
    job_seconds: Time limit of each step; default 3600.
    """

    recipe: Family | Literal["auto"] = "auto"
    calibration: Path | None = None
    inputs: Path | None = None
    labels: Path | None = None
    limits: Limits = field(default_factory=Limits)
    methods: tuple[Method, ...] = CALIBRATION_METHODS
    seven_bits: bool | None = None
    search_seconds: float = 60.0
    job_seconds: float = 3600.0

    @property
    def generated(self) -> bool:
        """True if outputs are compared on generated inputs."""
        return self.inputs is None and self.calibration is None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A recipe and its result.

    path: Its model; None if it failed.
    pair: Its measurements; None if it failed.
    failure: Reason of a failure; default "".
    methods: Quality by calibration method; default none.
    found: Result of the search for nodes to exclude; default None: no search.
    """

    recipe: Recipe
    path: Path | None = None
    pair: MeasuredPair | None = None
    failure: str = ""
    methods: Mapping[str, Quality] = field(default_factory=dict)
    found: SearchResult | None = None

    @property
    def name(self) -> str:
        """Name of the recipe."""
        return recipe_name(self.recipe)


@dataclass(frozen=True, slots=True)
class Quantized:
    """Result of quantization.

    facts: Parts of the model that could be quantized.
    candidates: Recipes tried, in order.
    chosen: Name of the chosen recipe; "" for none.
    reason: Reason of the choice.
    acceptable: True if the model was written.
    calibration_rows: Rows used to calibrate the static recipe.
    generated: True if outputs were compared on generated inputs.
    notes: Notes for users of the model.
    """

    facts: GraphFacts
    candidates: tuple[Candidate, ...]
    chosen: str
    reason: str
    acceptable: bool
    calibration_rows: int
    generated: bool
    notes: tuple[str, ...]

    @property
    def pairs(self) -> dict[str, MeasuredPair]:
        """Measurements by recipe name."""
        return {one.name: one.pair for one in self.candidates if one.pair is not None}

    @property
    def original(self) -> ModelMeasurement | None:
        """Measurements of the original model."""
        return next((pair.original for pair in self.pairs.values()), None)


def align(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates with one original that has the fastest runs and loads of all.

    The ratio of each candidate to its original does not change.
    """
    seen = [one.pair.original for one in candidates if one.pair is not None]
    if not seen:
        return list(candidates)
    rows = set.intersection(*(set(one.seconds) for one in seen))
    fastest = {count: min(one.seconds[count] for one in seen) for count in sorted(rows)}
    load = min(one.load_seconds for one in seen)
    original = replace(seen[0], load_seconds=load, seconds=fastest)
    return [
        one if one.pair is None else replace(one, pair=_beside(original, one.pair))
        for one in candidates
    ]


def _beside(original: ModelMeasurement, pair: MeasuredPair) -> MeasuredPair:
    before, after = pair.original.seconds, pair.candidate.seconds
    seconds = {rows: taken * after[rows] / before[rows] for rows, taken in original.seconds.items()}
    load = original.load_seconds * pair.candidate.load_seconds / pair.original.load_seconds
    candidate = replace(pair.candidate, seconds=seconds, load_seconds=load)
    return MeasuredPair(original, candidate, pair.quality)


def quality_text(quality: Quality) -> str:
    """Describe the quality of the outputs."""
    if quality.broken:
        return quality.broken
    rows = quality.rows
    if (labels := quality.labels) is not None:
        return (
            f"accuracy {labels.before:.4f} before and {labels.after:.4f} after "
            f"({labels.lost} of {rows} rows lost, {labels.gained} gained)"
        )
    if quality.decision:
        return f"the same decision on {rows - quality.changed} of {rows} rows"
    return f"the outputs' cosine is {quality.cosine:.4f}"
