"""What is asked for, and what comes of it."""

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
    """What is asked for.

    recipe: A family of recipes, or "auto" (default) for all.
    calibration: Rows for the static recipe, as `read_samples` reads them; default None.
    inputs: Rows to measure on; default None: those of the calibration, or else generated ones.
    labels: The right answer for each of the rows measured on, a `.npy`; default None.
    limits: What outputs may lose.
    methods: Of the static recipe, of which the one with the closest outputs is taken; default all.
    seven_bits: Whether weights keep seven bits; default None: where this processor needs it.
    search_seconds: For the search for nodes to exclude, where outputs lose too much; default 60;
        0: none is searched for.
    job_seconds: What each step may take; default 3600.
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
        """Whether outputs are compared on generated inputs."""
        return self.inputs is None and self.calibration is None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A recipe and what came of it.

    path: The model that it made; None where it failed.
    pair: What was measured; None where it failed.
    failure: Why it failed; default "".
    methods: The quality by each method of calibration that was compared; default none.
    found: What the search for nodes to exclude found; default None: none was needed.
    """

    recipe: Recipe
    path: Path | None = None
    pair: MeasuredPair | None = None
    failure: str = ""
    methods: Mapping[str, Quality] = field(default_factory=dict)
    found: SearchResult | None = None

    @property
    def name(self) -> str:
        """What it is called."""
        return recipe_name(self.recipe)


@dataclass(frozen=True, slots=True)
class Quantized:
    """What came of quantizing.

    facts: What of the model could be quantized.
    candidates: The recipes tried, in order.
    chosen: The name of the one taken; "" for none.
    reason: Why that one, or none, in a sentence.
    acceptable: Whether it was written.
    calibration_rows: How many rows the static recipe was calibrated with.
    generated: Whether outputs were compared on generated inputs.
    notes: What somebody who takes the model should know, a sentence each.
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
        """What was measured, by name."""
        return {one.name: one.pair for one in self.candidates if one.pair is not None}

    @property
    def original(self) -> ModelMeasurement | None:
        """The model as it was given."""
        return next((pair.original for pair in self.pairs.values()), None)


def align(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The same candidates beside one original: the fastest of its runs and loads beside any.

    A candidate's own times keep their ratio to it.
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
    """What became of the outputs, in words."""
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
