"""What is known against one variant, beside its baseline."""

from __future__ import annotations

from app.rollouts.sequential_test import (
    SLOW_SHARE,
    Counts,
    Evidence,
    Guard,
    Reason,
    Verdict,
    judge,
    renew,
    weigh,
)


class Stream:
    """Outcomes of the baseline and of a variant since they were weighed last."""

    __slots__ = ("baseline", "evidence", "variant")

    def __init__(self) -> None:
        self.baseline = [0, 0]  # all, bad
        self.variant = [0, 0]
        self.evidence = Evidence()

    def count(self, *, baseline: bool, bad: bool) -> None:
        counts = self.baseline if baseline else self.variant
        counts[0] += 1
        counts[1] += bad

    def weigh(self, increase: float) -> None:
        """A block without outcomes of one side waits for the other's."""
        if self.baseline[0] and self.variant[0]:
            baseline, variant = Counts(*self.baseline), Counts(*self.variant)
            self.evidence = weigh(renew(self.evidence), baseline, variant, increase)
            self.baseline, self.variant = [0, 0], [0, 0]


class VariantEvidence:
    """One variant's evidence.

    Slowness is compared with the baseline's over the same time, so that what makes everybody slow
    for a while speaks against nobody: the variant may be slower than the limit `SLOW_SHARE` more
    often than the baseline is.
    """

    def __init__(self) -> None:
        self.errors = Stream()
        self.slow = Stream()
        self.failed_on_both = 0  # failures of inputs that fail on the other side, too

    def judge(self, guard: Guard) -> Verdict | None:
        """Weigh what is new, and say which limit is broken."""
        evidence: dict[Reason, Evidence] = {}
        if guard.max_error_rate_increase is not None:
            self.errors.weigh(guard.max_error_rate_increase)
            evidence["errors"] = self.errors.evidence
        if guard.max_latency_ratio is not None:
            self.slow.weigh(SLOW_SHARE)
            evidence["latency"] = self.slow.evidence
        return judge(evidence, guard)
