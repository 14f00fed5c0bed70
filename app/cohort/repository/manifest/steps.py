"""The record of the steps that prepared a model for publication."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class StepDifference:
    """The difference from the outputs before the step: the maxima over all cases."""

    max_absolute: float
    max_relative: float = 0.0


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One preparation step.

    step: "convert", "optimize" or "quantize".
    what: The result in words, such as "scikit-learn Pipeline to opset 21"; default "".
    framework: The framework that the model comes from, only for "convert"; default "".
    versions: The libraries of the step, with their versions; default none.
    options: The requested options; default none.
    before: The SHA-256, in hex, of the model before the step; default "": no model.
    difference: The difference between the models before and after; default None: not measured.
    """

    step: str
    what: str = ""
    framework: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)
    before: str = ""
    difference: StepDifference | None = None
