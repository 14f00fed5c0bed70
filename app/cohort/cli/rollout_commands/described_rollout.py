"""Validate a rollout that a server describes, before `cohort rollout` uses it."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field

from cohort.errors import printable

MAX_LETTERS = 500


def _check_printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must be printable")
    return text


Printable = Annotated[str, AfterValidator(_check_printable)]
"""Text without control characters, safe to print on a terminal."""


Cleaned = Annotated[str, AfterValidator(partial(printable, limit=MAX_LETTERS))]
"""Text, such as names from a model, that is cut and cleaned of control characters."""


class _Evidence(BaseModel):
    """Evidence for one limit; logarithms are natural."""

    rate: float
    requests: int | float
    log_e: float
    threshold: float
    baseline_rate: float = 0.0
    baseline_requests: int | float = 0


class _Variant(BaseModel):
    name: Printable
    version: int
    share: float
    ready: bool
    batching_lost: Cleaned = ""
    rolled_back: bool
    reason: Printable
    detail: Printable
    at: Printable = ""
    evidence: dict[Printable, _Evidence]


class _Shadow(BaseModel):
    version: int
    batching_lost: Cleaned = ""
    stopped: bool
    reason: Printable
    detail: Printable
    compared: int
    disagreed: int
    failed: int
    dropped: int
    evidence: _Evidence | None = None


class _Ramp(BaseModel):
    state: str
    step: int = Field(ge=1)
    steps: list[float]
    soaked_seconds: float


class _Guard(BaseModel):
    min_requests: int


class _Rollout(BaseModel):
    variants: list[_Variant]
    shadow: _Shadow | None = None
    ramp: _Ramp | None = None
    guard: _Guard


def checked(described: object) -> dict[str, Any]:
    """Return the parts of a described rollout that the commands use. Raises ValueError."""
    return _Rollout.model_validate(described).model_dump()
