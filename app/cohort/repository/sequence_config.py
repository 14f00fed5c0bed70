"""`state:` and `sequences:` in a model's config: state that is kept between requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cohort.repository.schema import Range

StateConfig = Mapping[str, str]
"""Input names, each with the output that is its value in the next request."""


@dataclass(frozen=True, slots=True)
class SequencePolicy:
    """`sequences:` of a model with `state`.

    idle_seconds: Time until a sequence without requests is dropped; default 60.
    max_sequences: Maximum sequences of a process; further ones are rejected; default 1024.
    max_mb: Maximum size of all states of a process; default 64.
    initial: Initial value of a state input, by its name; default none: 0.
    """

    idle_seconds: float = 60.0
    max_sequences: int = 1024
    max_mb: float = 64.0
    initial: Mapping[str, float] = field(default_factory=dict)


SEQUENCE_RANGES: Mapping[str, Range] = {
    "sequences.idle_seconds": Range(0.05, 86_400),
    "sequences.max_sequences": Range(1, 2**20),
    "sequences.max_mb": Range(0.001, 2**20),
}
