"""Transfer of evidence from the workers of a host to the judging worker. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from cohort.rollouts.live import LiveRollout
from cohort.rollouts.units import GivenCounts


class GivenEvidence(NamedTuple):
    """A worker's counts for one limit of a model's rollout.

    version, variant, limit: The subject of the counts, as in `EvidenceLabels`.
    baseline, candidate: The counts of each.
    """

    model: str
    version: int
    variant: str
    limit: str
    baseline: GivenCounts
    candidate: GivenCounts


def give_evidence(lives: Mapping[str, LiveRollout]) -> list[GivenEvidence]:
    """Return the unjudged counts of all models, and remove them here."""
    return [
        GivenEvidence(model, *labels, *stream.give())
        for model, live in lives.items()
        for labels, stream in live.give_streams()
    ]


def take_evidence(lives: Mapping[str, LiveRollout], given: Iterable[GivenEvidence]) -> None:
    """Add the counts of another worker. Counts of replaced versions are left out."""
    for one in given:
        live = lives.get(one.model)
        for labels, stream in () if live is None else live.streams():
            if labels == (one.version, one.variant, one.limit):
                stream.take_given(one.baseline, one.candidate)


def read_given(rows: Iterable[Sequence[Any]]) -> list[GivenEvidence]:
    """Read evidence from JSON, which turns named tuples into lists."""
    return [
        GivenEvidence(
            model, version, variant, limit, GivenCounts(*baseline), GivenCounts(*candidate)
        )
        for model, version, variant, limit, baseline, candidate in rows
    ]
