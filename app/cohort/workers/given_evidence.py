"""Evidence on its way from the workers of a host to the one that judges. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from cohort.rollouts.live import LiveRollout
from cohort.rollouts.units import GivenCounts


class GivenEvidence(NamedTuple):
    """What a worker counted about one limit of a model's rollout.

    version, variant, limit: Whose it is, as in `EvidenceLabels`.
    baseline, candidate: What was counted of either.
    """

    model: str
    version: int
    variant: str
    limit: str
    baseline: GivenCounts
    candidate: GivenCounts


def give_evidence(lives: Mapping[str, LiveRollout]) -> list[GivenEvidence]:
    """What was counted and not judged yet, by model; it is gone there."""
    return [
        GivenEvidence(model, *labels, *stream.give())
        for model, live in lives.items()
        for labels, stream in live.give_streams()
    ]


def take_evidence(lives: Mapping[str, LiveRollout], given: Iterable[GivenEvidence]) -> None:
    """Count what another worker counted. What is about another version by now is left out."""
    for one in given:
        live = lives.get(one.model)
        for labels, stream in () if live is None else live.streams():
            if labels == (one.version, one.variant, one.limit):
                stream.take_given(one.baseline, one.candidate)


def read_given(rows: Iterable[Sequence[Any]]) -> list[GivenEvidence]:
    """Evidence as JSON has it: named tuples are lists there."""
    return [
        GivenEvidence(
            model, version, variant, limit, GivenCounts(*baseline), GivenCounts(*candidate)
        )
        for model, version, variant, limit, baseline, candidate in rows
    ]
