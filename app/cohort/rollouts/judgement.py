"""Judge a variant from evidence: pure, and valid at any number of looks.

Each limit is about a rate: of requests that fail, are slow, or disagree. It is tested by an
    e-process, the wealth of a bet against "the variant keeps within its limit". While that is true,
    the wealth is not expected to grow. By Ville's inequality it ever exceeds 1/alpha with
    probability at most alpha, so a look after every request costs nothing. Alpha is 1 - confidence,
    split evenly among the configured limits. The observations are the units of
    `cohort.rollouts.units`.

Two rates, of variant and baseline, are tested as in section 2 of Turner, Ly & Grünwald. The source
is "Generic e-variables for exact sequential k-sample tests that allow for optional stopping" (2021,
arXiv:2106.02693). For a block of n_a and n_b outcomes, take the likelihood of an alternative
against that of its projection on the null. If the null is convex, this ratio has expectation at
most 1. The alternative is estimated from earlier blocks only.

One rate is tested in the same way, with the limit instead of the baseline. See Ramdas, Grünwald,
Vovk & Shafer, "Game-theoretic statistics and safe anytime-valid inference" (2023).

To detect a change after a long good past, a bet that has lost is replaced by a new one. This is an
e-detector: Shin, Ramdas & Rinaldo, "E-detectors: a nonparametric framework for sequential change
detection" (2023, arXiv:2203.03532). Half of alpha is for the first bet, the other half for each
RESTARTS that follow (decision 0028).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import exp, inf, log, log1p
from typing import Literal, Protocol

Reason = Literal["errors", "latency", "disagreement"]

SLOW_SHARE = 0.05
"""Maximum excess of a variant's share of slow requests over the baseline's.

A request is slow if it takes longer than max_latency_ratio times the baseline's p95.
"""

ALTERNATIVES = (1.5, 2.5, 8.0)
"""The bet is spread over variants with this many times the rate that their limit allows."""

RESTART_BELOW = -1.5
"""The log of the wealth below which a bet is replaced by a new one."""

RESTARTS = 24
"""The number of bets after the first that share the second half of the false-alarm budget.

For a variant that keeps within its limit, bets are shortest exactly at the limit. There 24 bets
cover about 10,000 units. Each further 24 bets may spend another half of the budget.
"""


@dataclass(frozen=True, slots=True)
class Guard:
    """`guard:` in a rollout. A limit of None, the default of each, is not watched.

    Limits have no other defaults because tolerable values depend on the model.

    max_error_rate_increase: Maximum excess of a variant's error rate over the baseline's, as a
        share of its requests; default None: any.
    max_latency_ratio: Latency above which a request is slow, as a multiple of the baseline's p95;
        default None: any.
    max_disagreement: The share of copies on which the shadow may disagree; default None: any.
    min_requests: Requests of the variant that count before a verdict on latency or disagreement;
        default 200.
    confidence: A variant that keeps within all limits is rolled back with a probability of at most
        1 - confidence; default 0.95.
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
    """Outcomes, or units of them.

    total: Their number; default 0.
    bad: The number of bad ones; for units, the sum of their bad shares; default 0.
    """

    total: float = 0
    bad: float = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.total + other.total, self.bad + other.bad)

    @property
    def rate(self) -> float:
        """The share of bad ones, 0 if the total is 0."""
        return self.bad / self.total if self.total else 0.0


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence so far: the units, and the log of each bet's wealth.

    baseline: The baseline's units; empty for a stream without one.
    variant: The variant's units.
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
        mean = sum(exp(one - highest) for one in self.log_wealths) / len(self.log_wealths)
        return highest + log(mean)


def weigh_two_samples(
    evidence: Evidence, baseline: Counts, variant: Counts, increase: float
) -> Evidence:
    """Add a block of new outcomes of both streams, against "at most `increase` worse".

    A block must have outcomes of both streams: without them it is not evidence.
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
    """Start a new bet if the present one has lost.

    A bet against a variant that was good for a day has lost nearly all its wealth. The variant
    would have to be bad for hours to win it back.
    """
    if evidence.log_e >= RESTART_BELOW:
        return evidence
    return replace(evidence, log_wealths=Evidence().log_wealths, restarts=evidence.restarts + 1)


def threshold_of(evidence: Evidence, guard: Guard) -> float:
    """Return the log of the wealth at which this bet wins, with its part of the alarm budget."""
    part = 0.5 if evidence.restarts == 0 else 0.5 / RESTARTS
    return guard.threshold - log(part)


class Judged(Protocol):
    """The subject of a judgement: the evidence, and the outcomes behind it."""

    @property
    def evidence(self) -> Evidence:
        """The evidence so far."""

    @property
    def baseline(self) -> Counts:
        """The baseline's outcomes; empty for a stream without one."""

    @property
    def variant(self) -> Counts:
        """The variant's outcomes."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A limit was broken, as the outcomes of the variant and the baseline show."""

    reason: Reason
    variant: Counts
    baseline: Counts

    def __str__(self) -> str:
        against = f" against {self.baseline.rate:.2%}" if self.baseline.total else ""
        return f"{self.reason}: {self.variant.rate:.2%} of {self.variant.total} requests{against}"


def judge(streams: Mapping[Reason, Judged], guard: Guard) -> Verdict | None:
    """Return the limit that a variant broke; None while the evidence is insufficient.

    Errors are judged from the first request on: a failing variant needs few.
    """
    for reason, seen in streams.items():
        enough = reason == "errors" or seen.variant.total >= guard.min_requests
        if enough and seen.evidence.log_e >= threshold_of(seen.evidence, guard):
            return Verdict(reason, seen.variant, seen.baseline)
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
        return 0.0  # the alternative is within the null
    low_null = _project(baseline.total, low, variant.total, high, increase)
    high_null = low_null + increase
    return (
        _likelihood(baseline, low)
        - _likelihood(baseline, low_null)
        + _likelihood(variant, high)
        - _likelihood(variant, high_null)
    )


def _project(n_low: float, low: float, n_high: float, high: float, increase: float) -> float:
    """Return the baseline's rate at the point of the null nearest to (`low`, `high`), by KL
    divergence.

    The nearest point is on the null's edge, with a variant that is exactly `increase` worse. The
    divergence is convex along that edge. Its minimum is found with Newton's method on the slope,
    and with bisection if a step leaves the bracket.
    """
    left, right = max(low, 1e-9), max(min(high - increase, 1 - increase - 1e-9), 1e-9)
    middle = (left + right) / 2
    for _ in range(40):
        up = middle + increase
        spread, spread_up = middle * (1 - middle), up * (1 - up)
        off, off_up = (middle - low) / spread, (up - high) / spread_up
        slope = n_low * off + n_high * off_up
        left, right = (left, middle) if slope > 0 else (middle, right)
        steep = n_low * (1 - off * (1 - 2 * middle)) / spread
        steep += n_high * (1 - off_up * (1 - 2 * up)) / spread_up
        newton = middle - slope / steep if steep > 0 else left
        before, middle = middle, newton if left < newton < right else (left + right) / 2
        if abs(middle - before) < 1e-12:
            break
    return middle
