"""A canary's first twenty requests were slow, with cold caches, and it was rolled back for them."""

from __future__ import annotations

from cohort.rollouts import Guard, Rollout, Variant
from cohort.rollouts.evidence import RolloutEvidence

ROLLOUT = Rollout("m", {"a": Variant("a", 1, 1), "b": Variant("b", 2, 1)}, "a")


def served(*, slow_first: int = 0, slow_later: int = 0) -> bool:
    """Return True if a canary with these slow requests among 600 is rolled back for its latency."""
    evidence = RolloutEvidence(ROLLOUT, Guard(max_latency_ratio=1.5))
    now = 0.0
    rolled_back = False
    for number in range(-200, 600):
        now += 0.2
        evidence.count_latency("a", 0.01, now=now)
        if number >= 0:
            slow = number < slow_first or 600 - slow_later <= number
            assert evidence.admit("b", None, now, bad=False)
            evidence.count_latency("b", 1.0 if slow else 0.01, now=now)
        rolled_back = rolled_back or bool(evidence.judge(()))
    return rolled_back


def test_twenty_slow_first_requests() -> None:
    """The canary was rolled back. Now the first hundred are left out, and later ones count."""
    assert not served(slow_first=20)
    assert not served(slow_first=100)
    assert served(slow_later=100)
