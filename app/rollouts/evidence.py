"""The evidence against the variants of a rollout. Pure: no clock and no I/O."""

from __future__ import annotations

from collections.abc import Collection

from app.rollouts.latency import Latency
from app.rollouts.rollout import Rollout
from app.rollouts.sequential_test import (
    SLOW_SHARE,
    Counts,
    Evidence,
    Guard,
    Reason,
    Verdict,
    judge,
    renew,
    weigh_two_samples,
)

MIN_BASELINE_REQUESTS = 100
"""Responses of the baseline from which its p95 is estimated."""


class OutcomeStream:
    """Outcomes of the baseline and of a variant: the evidence, and outcomes not yet added to it.

    evidence: The evidence from the outcomes weighed so far.
    """

    __slots__ = ("_baseline", "_variant", "evidence")

    def __init__(self) -> None:
        self._baseline = [0, 0]  # all, bad: counted for every request, so without an object each
        self._variant = [0, 0]
        self.evidence = Evidence()

    def count(self, *, baseline: bool, bad: bool) -> None:
        """Count one outcome of the baseline, or else of the variant."""
        counts = self._baseline if baseline else self._variant
        counts[0] += 1
        counts[1] += bad

    def weigh(self, increase: float) -> None:
        """Add the new outcomes to the evidence, once there are some of both sides.

        increase: How much larger the variant's rate may be, 0 to 1.
        """
        if self._baseline[0] and self._variant[0]:
            baseline, variant = Counts(*self._baseline), Counts(*self._variant)
            evidence = renew(self.evidence)
            self.evidence = weigh_two_samples(evidence, baseline, variant, increase)
            self._baseline, self._variant = [0, 0], [0, 0]


class VariantEvidence:
    """The evidence against one variant.

    Slow requests are compared with the baseline's over the same time, because a busy machine slows
    both: the variant's share of slow requests may be `SLOW_SHARE` above the baseline's.

    errors: Requests that failed.
    slow: Requests that were slow.
    failed_on_both: The number of requests that failed on the baseline and on the variant, which are
        not evidence.
    """

    __slots__ = ("errors", "failed_on_both", "slow")

    def __init__(self) -> None:
        self.errors = OutcomeStream()
        self.slow = OutcomeStream()
        self.failed_on_both = 0

    def judge(self, guard: Guard) -> Verdict | None:
        """Add the new outcomes to the evidence; return a verdict where a limit is broken."""
        evidence: dict[Reason, Evidence] = {}
        if guard.max_error_rate_increase is not None:
            self.errors.weigh(guard.max_error_rate_increase)
            evidence["errors"] = self.errors.evidence
        if guard.max_latency_ratio is not None:
            self.slow.weigh(SLOW_SHARE)
            evidence["latency"] = self.slow.evidence
        return judge(evidence, guard)


class RolloutEvidence:
    """The evidence against each candidate of a rollout.

    candidates: The evidence by the variant's name.
    slow_from: The latency in seconds above which a request counts as slow; changes only in `judge`,
        and is None until the baseline has answered MIN_BASELINE_REQUESTS.

    rollout: The rollout; `follow` replaces it.
    guard: The limits.
    """

    def __init__(self, rollout: Rollout, guard: Guard) -> None:
        self.candidates = {name: VariantEvidence() for name in rollout.candidates}
        self.slow_from: float | None = None
        self._rollout = rollout
        self._guard = guard
        self._latency = Latency()

    def follow(self, rollout: Rollout) -> None:
        """Replace the rollout. A candidate keeps its evidence until its version changes."""
        before, self._rollout = self._rollout.variants, rollout
        kept = {
            name: evidence
            for name, evidence in self.candidates.items()
            if name in rollout.candidates and rollout.variants[name].version == before[name].version
        }
        self.candidates = {name: kept.get(name) or VariantEvidence() for name in rollout.candidates}

    def restart(self, version: int) -> None:
        """Discard the evidence against the candidates of a version."""
        for name in self._rollout.candidates_of(version):
            self.candidates[name] = VariantEvidence()

    def count_outcome(self, variant: str, *, bad: bool) -> None:
        """Count a request that `variant` answered, or failed to answer if `bad`."""
        baseline = variant == self._rollout.baseline
        for evidence in self._concerned(variant):
            evidence.errors.count(baseline=baseline, bad=bad)

    def count_latency(self, variant: str, seconds: float) -> None:
        """Count how long `variant` took, from arrival to reply."""
        baseline = variant == self._rollout.baseline
        if baseline:
            self._latency.add(seconds)
        if self.slow_from is not None:
            for evidence in self._concerned(variant):
                evidence.slow.count(baseline=baseline, bad=seconds > self.slow_from)

    def _concerned(self, variant: str) -> Collection[VariantEvidence]:
        """The evidence that an outcome of `variant` counts in: the baseline's in all of it."""
        if variant == self._rollout.baseline:
            return self.candidates.values()
        evidence = self.candidates.get(variant)
        return () if evidence is None else (evidence,)

    def judge(self, rolled_back: Collection[int]) -> dict[int, Verdict]:
        """Add the new outcomes to the evidence; return a verdict for each version over a limit.

        Versions in `rolled_back`, and candidates of the baseline's own version, are not judged.
        """
        broken: dict[int, Verdict] = {}
        for name, evidence in self.candidates.items():
            version = self._rollout.variants[name].version
            if version in rolled_back or version == self._rollout.baseline_version:
                continue
            if (verdict := evidence.judge(self._guard)) is not None:
                broken[version] = verdict
        ratio = self._guard.max_latency_ratio
        if ratio is not None and self._latency.total >= MIN_BASELINE_REQUESTS:
            self.slow_from = self._latency.quantile(0.95) * ratio
            self._latency.forget()
        return broken
