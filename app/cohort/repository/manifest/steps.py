"""What was done to a model before it was published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class StepDifference:
    """How far outputs were from those before the step: the largest of each over all cases."""

    max_absolute: float
    max_relative: float = 0.0


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step.

    step: "convert", "optimize" or "quantize".
    what: In words, what was made: "scikit-learn Pipeline to opset 21"; default "".
    framework: The framework that the model comes from, of "convert" alone; default "".
    versions: The libraries that did it, with their versions; default none.
    options: What was asked for; default nothing.
    before: The SHA-256 of the model before, in hex; default "": there was none.
    difference: Measured between the two; default None: not measured.
    """

    step: str
    what: str = ""
    framework: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)
    before: str = ""
    difference: StepDifference | None = None
