"""`state:` and `sequences:` in a model's config: what a model remembers between requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cohort.repository.schema import Range

StateConfig = Mapping[str, str]
"""The names of inputs, each with the output that is its value in the next request."""


@dataclass(frozen=True, slots=True)
class SequencePolicy:
    """`sequences:` of a model with `state`.

    idle_seconds: How long a sequence is kept without a request; default 60.
    max_sequences: Sequences in a process at most; further ones are refused; default 1024.
    max_mb: Megabytes of their states in a process at most; default 64.
    initial: The number that a state input begins with, by its name; default none: 0.
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
