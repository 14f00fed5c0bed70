"""Judge a variant from evidence: pure, and valid however often one looks.

Each limit is about a Bernoulli stream (a request failed or not, was slow or not, disagreed or not)
and is tested by an e-process: the wealth of a bet against "the variant keeps within its limit",
which is not expected to grow while that is true. By Ville's inequality it ever exceeds 1/alpha with
probability at most alpha, so a look after every request costs nothing. Alpha is 1 - confidence,
split evenly among the limits that are set.

Two streams (error rates of variant and baseline): Turner, Ly & Grünwald, "Generic e-variables for
exact sequential k-sample tests that allow for optional stopping" (2021, arXiv:2106.02693), section
2: for a block of n_a and n_b outcomes, the likelihood of an alternative against that of its
projection on the null, where the null is convex, has expectation at most 1. The alternative is
estimated from earlier blocks only. One stream: the same with the limit in place of the baseline;
see Ramdas, Grünwald, Vovk & Shafer, "Game-theoretic statistics and safe anytime-valid inference"
(2023).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, inf, log, log1p, pi
from typing import Literal

Reason = Literal["errors", "latency", "disagreement"]

SLOW_SHARE = 0.05
"""How much larger a variant's share of slow requests may be than the baseline's.

Slow is slower than max_latency_ratio times the baseline's p95.
"""

ALTERNATIVES = (1.6, 2.2, 4.0)
"""The bet is spread over variants with this many times the rate that their limit allows."""

RESTART_BELOW = -3.0
"""The log of the wealth below which a bet is given up and a new one starts in its place."""


@dataclass(frozen=True, slots=True)
class Guard:
    """`guard:` in a rollout. A limit of None, the default of each, is not watched.

    Limits have no other defaults because what is tolerable depends on the model.

    max_error_rate_increase: How far a variant's error rate may be above the baseline's, as a share
        of its requests, 0 to 1.
    max_latency_ratio: The latency above which a request counts as slow, as a multiple of the
        baseline's p95, 1 or more.
    max_disagreement: The share of copies on which the shadow may disagree, 0 to 1.
    min_requests: Requests of the variant before any verdict; default 200. The test is valid without
        it, but the first requests, with cold caches, are not typical.
    confidence: A variant that keeps within all limits is ever rolled back with a probability of at
        most 1 - confidence; default 0.95: one good variant in twenty, the usual level of a test.
    """

    max_error_rate_increase: float | None = None
    max_latency_ratio: float | None = None
    max_disagreement: float | None = None
    min_requests: int = 200
    confidence: float = 0.95

    @property
    def threshold(self) -> float:
        """The log of the wealth at which a limit counts as broken, if a single bet is made."""
        limits = (self.max_error_rate_increase, self.max_latency_ratio, self.max_disagreement)
        watched = sum(limit is not None for limit in limits) or 1
        alpha = (1 - self.confidence) / watched
        return -log(alpha) if alpha > 0 else inf


@dataclass(frozen=True, slots=True)
class Counts:
    """Outcomes of a stream.

    total: How many there are; default 0.
    bad: How many of them are bad; default 0.
    """

    total: int = 0
    bad: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.total + other.total, self.bad + other.bad)

    @property
    def rate(self) -> float:
        """The share of bad ones, 0 where there is none."""
        return self.bad / self.total if self.total else 0.0


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence so far: the counts, and the log of each bet's wealth.

    baseline: The baseline's outcomes; empty for a stream without one.
    variant: The variant's outcomes.
    log_wealths: For each of `ALTERNATIVES`; the mean of the wealths is the e-process.
    restarts: The number of e-processes that were given up before this one.
    """

    baseline: Counts = Counts()
    variant: Counts = Counts()
    log_wealths: tuple[float, ...] = (0.0,) * len(ALTERNATIVES)
    restarts: int = 0

    @property
    def log_e(self) -> float:
        """The log of the e-process: the evidence against the variant, 0 at the start."""
        highest = max(self.log_wealths)
        return highest + log(
            sum(exp(one - highest) for one in self.log_wealths) / len(self.log_wealths)
        )


def weigh_two_samples(
    evidence: Evidence, baseline: Counts, variant: Counts, increase: float
) -> Evidence:
    """Add a block of new outcomes of both streams, against "at most `increase` worse".

    A block must have outcomes of both streams: others say nothing.
    """
    known = _smoothed(evidence.baseline)
    log_wealths = tuple(
        wealth + _block(baseline, variant, known, min(times * (known + increase), 0.99), increase)
        for wealth, times in zip(evidence.log_wealths, ALTERNATIVES, strict=True)
    )
    return Evidence(
        evidence.baseline + baseline, evidence.variant + variant, log_wealths, evidence.restarts
    )


def weigh_one_sample(evidence: Evidence, variant: Counts, limit: float) -> Evidence:
    """Add new outcomes of the variant, against "a share of at most `limit`"."""
    limit = max(limit, 1e-6)
    log_wealths = tuple(
        wealth
        + _likelihood(variant, max(min(times * limit, 0.99), limit))
        - _likelihood(variant, limit)
        for wealth, times in zip(evidence.log_wealths, ALTERNATIVES, strict=True)
    )
    return Evidence(evidence.baseline, evidence.variant + variant, log_wealths, evidence.restarts)


def renew(evidence: Evidence) -> Evidence:
    """Start a new bet where the present one is all but lost.

    A bet against a variant that was good for a day has lost nearly all its wealth; the variant
    would have to be bad for hours to win it back. The first bet has nine tenths of the false-alarm
    budget, and those that follow 6/pi² times 1, 1/4, 1/9, ... of the rest: together all of it.
    """
    if evidence.log_e >= RESTART_BELOW:
        return evidence
    return replace(evidence, log_wealths=Evidence().log_wealths, restarts=evidence.restarts + 1)


def threshold_of(evidence: Evidence, guard: Guard) -> float:
    """The log of the wealth at which this bet, with its part of the false-alarm budget, is won."""
    if not evidence.restarts:
        return guard.threshold - log(0.9)
    return guard.threshold + log(10 * pi * pi / 6 * evidence.restarts**2)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A limit was broken, as `evidence` shows."""

    reason: Reason
    evidence: Evidence

    def __str__(self) -> str:
        seen = self.evidence
        against = f" against {seen.baseline.rate:.2%}" if seen.baseline.total else ""
        return f"{self.reason}: {seen.variant.rate:.2%} of {seen.variant.total} requests{against}"


def judge(evidence: dict[Reason, Evidence], guard: Guard) -> Verdict | None:
    """Say which limit a variant broke; None while the evidence is not enough."""
    for reason, seen in evidence.items():
        if seen.variant.total >= guard.min_requests and seen.log_e >= threshold_of(seen, guard):
            return Verdict(reason, seen)
    return None


def _smoothed(counts: Counts) -> float:
    """Estimate a rate that is never 0 or 1; without any outcome it is 0.01."""
    return (counts.bad + 0.5) / (counts.total + 50.0)


def _likelihood(counts: Counts, rate: float) -> float:
    """The log-likelihood of `counts`, without the binomial coefficient."""
    rate = min(max(rate, 1e-9), 1 - 1e-9)
    return counts.bad * log(rate) + (counts.total - counts.bad) * log1p(-rate)


def _block(baseline: Counts, variant: Counts, low: float, high: float, increase: float) -> float:
    """The log of one block's e-value for the alternative (`low`, `high`)."""
    if high <= low + increase:
        return 0.0  # the alternative lies within the null
    low_null = _project(baseline.total, low, variant.total, high, increase)
    high_null = low_null + increase
    return (
        _likelihood(baseline, low)
        - _likelihood(baseline, low_null)
        + _likelihood(variant, high)
        - _likelihood(variant, high_null)
    )


def _project(n_low: int, low: float, n_high: int, high: float, increase: float) -> float:
    """The baseline's rate at the point of the null nearest to (`low`, `high`), by KL divergence.

    Nearest is on the null's edge, where the variant is exactly `increase` worse. The divergence is
    convex along that edge: bisect on its slope.
    """
    left, right = max(low, 1e-9), max(min(high - increase, 1 - increase - 1e-9), 1e-9)
    for _ in range(40):
        middle = (left + right) / 2
        up = middle + increase
        slope = n_low * (middle - low) / (middle * (1 - middle)) + n_high * (up - high) / (
            up * (1 - up)
        )
        left, right = (left, middle) if slope > 0 else (middle, right)
    return (left + right) / 2
