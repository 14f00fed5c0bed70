"""The evidence against the variants of a rollout. Pure: no clock and no I/O."""

from __future__ import annotations

from collections.abc import Collection

from cohort.rollouts.judgement import SLOW_SHARE, Guard, Reason, Verdict, judge
from cohort.rollouts.latency import Latency
from cohort.rollouts.rollout import Rollout
from cohort.rollouts.units import Callers, OutcomeStream

MIN_BASELINE_REQUESTS = 100
"""Responses of the baseline that are needed to estimate its p95."""

HUNG_SECONDS = 1.0
HUNG_RATIO = 10
"""If a caller gives up after a second and ten times the baseline's p95, the version hung."""

WARM_UP_REQUESTS = 100
"""Number of first requests of a variant whose latency does not count: caches are cold."""


class VariantEvidence:
    """The evidence against one variant.

    Slow requests are compared with the baseline's over the same time, because a busy machine slows
    both. The variant's share of slow requests may be `SLOW_SHARE` above the baseline's.

    errors: Requests that failed.
    slow: Requests that were slow.
    answered: The number of requests that the variant answered or failed, even if they do not count.
    failed_on_both: The number of requests that failed on the baseline and on the variant, which are
        not evidence.
    """

    __slots__ = ("answered", "errors", "failed_on_both", "slow")

    def __init__(self) -> None:
        self.errors = OutcomeStream()
        self.slow = OutcomeStream()
        self.answered = 0
        self.failed_on_both = 0

    def streams(self, guard: Guard) -> dict[Reason, OutcomeStream]:
        """The streams whose limits are set."""
        streams: dict[Reason, OutcomeStream] = {}
        if guard.max_error_rate_increase is not None:
            streams["errors"] = self.errors
        if guard.max_latency_ratio is not None:
            streams["latency"] = self.slow
        return streams

    def judge(self, guard: Guard) -> Verdict | None:
        """Add the new outcomes to the evidence; return a verdict if a limit is broken."""
        if guard.max_error_rate_increase is not None:
            self.errors.weigh(guard.max_error_rate_increase)
        if guard.max_latency_ratio is not None:
            self.slow.weigh(SLOW_SHARE)
        return judge(self.streams(guard), guard)


class RolloutEvidence:
    """The evidence against each candidate of a rollout.

    candidates: The evidence by the variant's name.
    slow_from: The latency in seconds above which a request counts as slow; changes only in `judge`,
        and is None until the baseline has answered MIN_BASELINE_REQUESTS.
    hung_from: The same for requests whose callers gave up.

    rollout: The rollout; `follow` replaces it.
    guard: The limits.
    """

    def __init__(self, rollout: Rollout, guard: Guard) -> None:
        self.candidates = {name: VariantEvidence() for name in rollout.candidates}
        self.slow_from: float | None = None
        self.hung_from: float | None = None
        self._rollout = rollout
        self._guard = guard
        self._latency = Latency()
        self._callers = Callers()

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

    def admit(self, variant: str, caller: object, now: float, *, bad: bool) -> bool:
        """Return True if an outcome of `variant` counts, by the rules of `Callers`.

        It must be called for every outcome.

        caller: Identifies the caller; None: not known, and the outcome counts.
        now: When it was answered, in seconds on the monotonic clock.
        """
        if (evidence := self.candidates.get(variant)) is not None:
            evidence.answered += 1
        return caller is None or self._callers.admit((caller, variant), now, bad=bad)

    def count_outcome(self, variant: str, *, bad: bool, now: float) -> None:
        """Count a request that `variant` answered, or failed to answer if `bad`."""
        baseline = variant == self._rollout.baseline
        for evidence in self._concerned(variant):
            evidence.errors.count(baseline=baseline, bad=bad, now=now)

    def count_latency(self, variant: str, seconds: float, *, now: float) -> None:
        """Count the time of `variant`, from arrival to reply; not while a candidate warms up."""
        baseline = variant == self._rollout.baseline
        if baseline:
            self._latency.add(seconds)
        for evidence in self._concerned(variant):
            if self.slow_from is not None and self.is_timed(evidence):
                evidence.slow.count(baseline=baseline, bad=seconds > self.slow_from, now=now)

    def is_long(self, seconds: float) -> bool:
        """Return True if a request whose caller gave up after `seconds` is evidence."""
        limits = (self.slow_from, self.hung_from)
        return any(limit is not None and seconds > limit for limit in limits)

    def count_given_up(self, variant: str, seconds: float, *, now: float) -> None:
        """Count a request of the baseline whose caller gave up, so that its duration is not known.

        It was slow if the caller had waited for `slow_from`, and failed if for `hung_from`.
        """
        baseline = variant == self._rollout.baseline
        for evidence in self._concerned(variant):
            if self.hung_from is not None and seconds > self.hung_from:
                evidence.errors.count(baseline=baseline, bad=True, now=now)
            if self.slow_from is not None and seconds > self.slow_from and self.is_timed(evidence):
                evidence.slow.count(baseline=baseline, bad=True, now=now)

    def suspected(
        self, variant: str, seconds: float, *, gave_up: bool
    ) -> list[tuple[OutcomeStream, float]]:
        """Return the streams in which a request of a candidate is bad, if its version is the cause.

        Each has the ratio to the baseline's run above which it is bad.

        seconds: Its duration, or the time until its caller gave up.
        """
        evidence = self.candidates.get(variant)
        if evidence is None:
            return []
        found: list[tuple[OutcomeStream, float]] = []
        if gave_up and self.hung_from is not None and seconds > self.hung_from:
            found.append((evidence.errors, HUNG_RATIO))
        ratio = self._guard.max_latency_ratio
        slow = self.slow_from is not None and seconds > self.slow_from and self.is_timed(evidence)
        if ratio is not None and slow:
            found.append((evidence.slow, ratio))
        return found

    def is_timed(self, evidence: VariantEvidence) -> bool:
        """Return True if latencies count in the evidence now."""
        return self.slow_from is not None and evidence.answered > WARM_UP_REQUESTS

    def _concerned(self, variant: str) -> Collection[VariantEvidence]:
        """Return the evidence in which an outcome of `variant` counts: the baseline's in all."""
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
        self.follow_latency()
        return broken

    def follow_latency(self) -> None:
        """Update the limits of slow and hung requests from the baseline's latencies so far."""
        if self._latency.total >= MIN_BASELINE_REQUESTS:
            p95, ratio = self._latency.quantile(0.95), self._guard.max_latency_ratio
            self.slow_from = None if ratio is None else p95 * ratio
            self.hung_from = max(HUNG_SECONDS, HUNG_RATIO * p95)
            self._latency.forget()
