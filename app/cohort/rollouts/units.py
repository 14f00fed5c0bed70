"""The units of evidence: which outcomes count, and which count as one. Pure.

Failures come in clusters: a run fails for all its callers, a caller tries again, a device stalls
    for a moment. Tests that treat them as independent roll good versions back. Therefore:

- A caller counts at most once in CALLER_SECONDS in each variant. It never counts while it may be
  repeating a failed request. So whether an outcome counts is known before it, except for the
  failure that begins a series.
- The outcomes of a variant in one slot of SLOT_SECONDS are one unit, whose value is the share of
  bad ones, from 0 to 1. A run that fails for sixteen callers is at most one bad unit.

The tests weigh units. A likelihood ratio of Bernoulli outcomes stays an e-value for values y
between 0 and 1 with the same mean, since `a^y b^(1-y) <= y a + (1-y) b`. The right side is the bet
on a bounded mean of Waudby-Smith & Ramdas. See section 4 of "Estimating means of bounded random
variables by betting" (2024, arXiv:2010.09686). So outcomes within a unit may depend on each other
in any way; units must not.
"""

from __future__ import annotations

from collections import OrderedDict
from math import inf
from typing import NamedTuple

from cohort.rollouts.judgement import (
    Counts,
    Evidence,
    renew,
    weigh_one_sample,
    weigh_two_samples,
)

SLOT_SECONDS = 0.1
"""Time in which a variant's outcomes make one unit, unless evidence is weighed earlier."""

CALLER_SECONDS = 2.0
"""Time in which a caller counts at most once: longer than clients usually take to retry."""

MAX_CALLERS = 16_384
"""Callers of one rollout that are remembered, about 4 MB: the most recent ones."""


class Callers:
    """Decides whose outcomes count: one per caller in CALLER_SECONDS, no repetitions."""

    def __init__(self) -> None:
        # By caller: when an outcome last counted, and since when it fails (-inf: it does not)
        self._seen: OrderedDict[object, tuple[float, float]] = OrderedDict()

    def admit(self, caller: object, now: float, *, bad: bool) -> bool:
        """Return True if this outcome counts; `now` is in seconds and never goes back."""
        counted, failing = self._seen.get(caller, (-inf, -inf))
        repeated = now - failing < CALLER_SECONDS
        admitted = not repeated and now - counted >= CALLER_SECONDS
        if not bad:
            failing = -inf
        elif not repeated:
            failing = now
        self._seen[caller] = (now if admitted else counted, failing)
        self._seen.move_to_end(caller)
        if len(self._seen) > MAX_CALLERS:
            self._seen.popitem(last=False)
        return admitted


class Unit:
    """The outcomes of one variant in one slot.

    total, bad: The number of outcomes, and of bad ones.
    pending: Failures that are being checked, and not included yet.
    """

    __slots__ = ("bad", "pending", "slot", "total")

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.total = self.bad = self.pending = 0


class GivenCounts(NamedTuple):
    """Outcomes of one side that were counted in one process, for weighing in another.

    units, bad_units: The units for weighing; outcomes, bad: the outcomes in them.
    """

    units: float = 0
    bad_units: float = 0
    outcomes: float = 0
    bad: float = 0


class _Side:
    """The unweighed units of one variant, and all outcomes that counted so far."""

    __slots__ = ("_current", "_pending", "counted", "units")

    def __init__(self) -> None:
        self.counted = Counts()
        self.units = Counts()
        self._current = Unit(-1)
        self._pending: list[Unit] = []

    def unit_at(self, now: float) -> Unit:
        slot = int(now / SLOT_SECONDS)
        if slot != self._current.slot:
            self._close()
            self._current = Unit(slot)
        return self._current

    def gather(self) -> None:
        """Add all units without a pending failure to `units`."""
        self._close()
        self._current = Unit(-1)
        pending, self._pending = self._pending, []
        for unit in pending:
            self._put(unit)

    def give(self) -> GivenCounts:
        self.gather()
        units, counted = self.take(), self.counted
        self.counted = Counts()
        return GivenCounts(units.total, units.bad, counted.total, counted.bad)

    def take_given(self, given: GivenCounts) -> None:
        self.units += Counts(given.units, given.bad_units)
        self.counted += Counts(given.outcomes, given.bad)

    def take(self) -> Counts:
        units, self.units = self.units, Counts()
        return units

    def _close(self) -> None:
        self._put(self._current)

    def _put(self, unit: Unit) -> None:
        if unit.pending:
            self._pending.append(unit)
        elif unit.total:
            self.counted += Counts(unit.total, unit.bad)
            self.units += Counts(1, unit.bad / unit.total)


class OutcomeStream:
    """Outcomes of the baseline and of a variant: the evidence, and units not yet added to it.

    evidence: The evidence from the units weighed so far.
    """

    __slots__ = ("_baseline", "_variant", "evidence")

    def __init__(self) -> None:
        self._baseline = _Side()
        self._variant = _Side()
        self.evidence = Evidence()

    @property
    def baseline(self) -> Counts:
        """The outcomes of the baseline in the closed units."""
        return self._baseline.counted

    @property
    def variant(self) -> Counts:
        """The outcomes of the variant in the closed units."""
        return self._variant.counted

    def count(self, *, baseline: bool, bad: bool, now: float) -> None:
        """Count one outcome of the baseline, or else of the variant, at `now` in seconds."""
        unit = (self._baseline if baseline else self._variant).unit_at(now)
        unit.total += 1
        unit.bad += bad

    def hold(self, *, baseline: bool, now: float) -> Unit:
        """Keep the unit of a failure at `now` open until `release`, after the failure's check."""
        unit = (self._baseline if baseline else self._variant).unit_at(now)
        unit.pending += 1
        return unit

    @staticmethod
    def release(unit: Unit, *, bad: bool) -> None:
        """Count the failure of `hold` if it is `bad`; otherwise forget it."""
        unit.pending -= 1
        unit.total += bad
        unit.bad += bad

    def give(self) -> tuple[GivenCounts, GivenCounts]:
        """Return the unweighed counts of baseline and variant, and remove them here."""
        return self._baseline.give(), self._variant.give()

    def take_given(self, baseline: GivenCounts, variant: GivenCounts) -> None:
        """Add the counts of another process, as separate units."""
        self._baseline.take_given(baseline)
        self._variant.take_given(variant)

    def weigh(self, increase: float) -> None:
        """Add the new units to the evidence, once both sides have some.

        increase: The allowed increase of the variant's rate, 0 to 1.
        """
        self._baseline.gather()
        self._variant.gather()
        if self._baseline.units.total and self._variant.units.total:
            baseline, variant = self._baseline.take(), self._variant.take()
            self.evidence = weigh_two_samples(renew(self.evidence), baseline, variant, increase)

    def weigh_alone(self, limit: float) -> None:
        """Add the variant's new units to the evidence, against a rate of at most `limit`."""
        self._variant.gather()
        if self._variant.units.total:
            self.evidence = weigh_one_sample(renew(self.evidence), self._variant.take(), limit)
