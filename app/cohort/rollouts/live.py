"""One model's rollout in use: the choice of variants, and the evidence from their responses."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import compress
from typing import NamedTuple

import numpy as np

from cohort.batching import Outputs
from cohort.errors import (
    DeadlineExceeded,
    InferenceFailed,
    InvalidInput,
    NotReady,
    Overloaded,
    SequenceEnded,
    TooLarge,
)
from cohort.observability.tracing import current_span, set_current
from cohort.rollouts.checks import FailureChecks
from cohort.rollouts.config import RolloutConfig
from cohort.rollouts.decision_store import Decision
from cohort.rollouts.events import RolloutObserver
from cohort.rollouts.evidence import RolloutEvidence, VariantEvidence
from cohort.rollouts.judgement import Reason, Verdict
from cohort.rollouts.observed import CALLER_GONE, CallerOutcome, ObservedRequest
from cohort.rollouts.rollout import Rollout, Variant
from cohort.rollouts.shadow import ShadowRunner
from cohort.rollouts.side_queue import CatalogSource
from cohort.rollouts.units import OutcomeStream, Unit
from cohort.tensors import Arrays, TensorSpec


class EvidenceLabels(NamedTuple):
    """The version, variant and limit of evidence; evidence of a shadow has no variant."""

    version: int
    variant: str
    limit: Reason


class LiveRollout:
    """The rollout of one model, the decisions about it, and the evidence.

    After its response, a request that failed on one side, baseline or variant, is run on the other.
    An input that fails on both is evidence against neither. So a sticky caller with such inputs
    cannot cause a rollback, nor hide failures of the variant behind failures of the baseline. Slow
    requests of a candidate, and requests whose callers gave up, are also run on the baseline. They
    count if the baseline's run is shorter by the limit's ratio.

    rollout: The operator's rollout with the server's decisions applied.
    decisions: The decisions in force, by version.
    evidence: The evidence against each candidate.
    shadow: Runs the shadow's copies; None without a shadow.
    ramp_requests: The number of requests for which the ramp's variant was chosen.

    config: The operator's rollout and guard; `configure` replaces it.
    catalog: Returns the catalog of loaded versions.
    observe: Called with a Compared or Dropped for each of the shadow's copies.
    """

    def __init__(
        self, config: RolloutConfig, catalog: CatalogSource, observe: RolloutObserver
    ) -> None:
        self.config = config
        self.decisions: Mapping[int, Decision] = {}
        self.ramp_requests = 0
        self._step = 0
        self.rollout: Rollout = config.rollout.at_step(0)
        self.evidence = RolloutEvidence(config.rollout, config.guard)
        self.shadow: ShadowRunner | None = None
        self._catalog = catalog
        self._observe = observe
        self._checks = FailureChecks(config.rollout.model, catalog)
        self._follow_shadow()

    def configure(self, config: RolloutConfig) -> None:
        """Apply an edited config.

        A variant keeps its evidence until its version, the baseline's version or the guard changes.
        """
        before, self.config = self.config, config
        if (
            config.guard != before.guard
            or config.rollout.baseline_version != before.rollout.baseline_version
        ):
            self.evidence = RolloutEvidence(config.rollout, config.guard)
            if self.shadow is not None:
                self.shadow.forget_evidence()
        else:
            self.evidence.follow(config.rollout)
        self._checks.keep(config.rollout.versions)
        self._apply()
        self._follow_shadow()

    def apply_decisions(self, decisions: Mapping[int, Decision]) -> None:
        """Replace the decisions in force, by version.

        The variants of decided versions are rolled back. If a version's decision ended, its
        evidence is discarded and its shadow starts again.
        """
        ended = self.decisions.keys() - decisions.keys()
        self.decisions = decisions
        self._apply()
        for version in ended:
            self.evidence.restart(version)
            if self.shadow is not None and self.shadow.version == version:
                self.shadow.close()
                self.shadow = None
        self._follow_shadow()

    def apply_step(self, step: int) -> None:
        """Go to a step of the ramp."""
        self._step = step
        self._apply()

    def _apply(self) -> None:
        self.rollout = self.config.rollout.at_step(self._step).with_decisions(self.decisions)

    def _follow_shadow(self) -> None:
        wanted, running = self.config.rollout.shadow, self.shadow
        if running is not None and (wanted is None or wanted.version != running.version):
            running.close()
            running = self.shadow = None
        if wanted is not None and running is None:
            model = self.config.rollout.model
            self.shadow = ShadowRunner(model, wanted, self._catalog, self._observe)
        elif wanted is not None and running is not None:
            running.configure(wanted)

    def close(self) -> None:
        """Cancel all waiting copies."""
        self._checks.keep(())
        if self.shadow is not None:
            self.shadow.close()

    # -- the path of a request

    def choose(self, key: str | None, ready: Collection[int]) -> Variant:
        """Pick the variant for a caller's `key`, or for a new random key if it is None."""
        variant = self.rollout.choose(key, ready)
        ramp = self.rollout.ramp
        if ramp is not None and ramp.variant == variant.name:
            self.ramp_requests += 1
        return variant

    def observe(self, variant: str, version: int, caller: object = None) -> ObservedRequest:
        """Return an observer of a request for which `variant` and its `version` were chosen.

        caller: Identifies its caller; default None: not known.
        """
        return ObservedRequest(variant, version, caller, self.count)

    def count(self, outcome: CallerOutcome) -> None:
        """Count the outcome of a request, and copy the request to the shadow if it is sampled."""
        variant, now = outcome.variant, outcome.now
        if _gave_up(outcome):
            self._count_given_up(outcome)
            return
        if not _is_evidence(outcome):
            return
        bad = outcome.error is not None
        if self.evidence.admit(variant, outcome.caller, now, bad=bad):
            if not bad:
                self.evidence.count_outcome(variant, bad=False, now=now)
                if not self._time_elsewhere(outcome, gave_up=False):
                    self.evidence.count_latency(variant, outcome.seconds, now=now)
            elif isinstance(outcome.error, InferenceFailed) and outcome.error.device_lost:
                self.evidence.count_outcome(variant, bad=True, now=now)  # the other cannot either
            else:
                self._count_failure(outcome)
        shadow = self.shadow
        if (
            not bad
            and outcome.outputs is not None
            and shadow is not None
            and shadow.version != outcome.version  # it would agree with itself
            and self.rollout.samples_shadow()
        ):
            shadow.offer(outcome.arrays, outcome.specs, outcome.outputs)

    def count_answers(
        self, variant: str, callers: Iterable[int | None], *, seconds: float, now: float
    ) -> None:
        """Count requests of a variant that were answered together, as `count` does for each.

        callers: Identifies the caller of each; None: not known.
        seconds: Their duration, from the first arrival.
        now: When they were answered, in seconds on the monotonic clock.
        """
        evidence = self.evidence
        for caller in callers:
            if evidence.admit(variant, caller, now, bad=False):
                evidence.count_outcome(variant, bad=False, now=now)
                evidence.count_latency(variant, seconds, now=now)

    def copy_rows(
        self,
        version: int,
        arrays: Arrays,
        specs: Sequence[TensorSpec],
        outputs: Outputs,
        counts: Sequence[int],
    ) -> None:
        """Copy requests that a version answered together to the shadow, if they are sampled.

        counts: The number of rows of each request in `arrays` and `outputs`, in order.
        """
        shadow = self.shadow
        if shadow is None or shadow.version == version:
            return
        wanted = [self.rollout.samples_shadow() for _ in counts]
        if not any(wanted):
            return
        if not all(wanted):
            rows = np.repeat(wanted, counts)
            arrays = {name: array[rows] for name, array in arrays.items()}
            outputs = [output[rows] for output in outputs]
            counts = [*compress(counts, wanted)]
        if (span := current_span()) is None:
            shadow.offer_rows(arrays, specs, outputs, counts)
        else:
            with set_current(span.chosen(wanted)):
                shadow.offer_rows(arrays, specs, outputs, counts)

    def _count_given_up(self, outcome: CallerOutcome) -> None:
        """Count a request whose caller stopped waiting, if it had waited for long."""
        variant, now, seconds = outcome.variant, outcome.now, outcome.seconds
        if self.evidence.is_long(seconds) and self.evidence.admit(
            variant, outcome.caller, now, bad=True
        ):
            if variant == self.rollout.baseline:
                self.evidence.count_given_up(variant, seconds, now=now)
            else:
                self._time_elsewhere(outcome, gave_up=True)

    def _time_elsewhere(self, outcome: CallerOutcome, *, gave_up: bool) -> bool:
        """Run a request that took a candidate long on the baseline, before it counts.

        Returns True if that is needed; the result is counted later.
        """
        suspected = self.evidence.suspected(outcome.variant, outcome.seconds, gave_up=gave_up)
        if not suspected:
            return False
        units = [
            (stream, stream.hold(baseline=False, now=outcome.now), ratio)
            for stream, ratio in suspected
        ]

        def timed(seconds: float | None) -> None:
            for stream, unit, ratio in units:
                slower = seconds is not None and outcome.seconds > ratio * seconds
                stream.release(unit, bad=slower)

        self._checks.time(outcome, self.rollout.baseline_version, timed)
        return True

    def _count_failure(self, outcome: CallerOutcome) -> None:
        """Run the input on the other side before the failure counts."""
        rollout = self.rollout
        baseline = outcome.variant == rollout.baseline
        for name in rollout.candidates:
            if rollout.variants[name].rolled_back or not (baseline or name == outcome.variant):
                continue
            evidence = self.evidence.candidates[name]
            streams = [evidence.errors]
            if isinstance(outcome.error, DeadlineExceeded) and self.evidence.is_timed(evidence):
                streams.append(evidence.slow)
            units = [(one, one.hold(baseline=baseline, now=outcome.now)) for one in streams]
            other = rollout.variants[name if baseline else rollout.baseline]
            self._checks.check(outcome, other.version, partial(_release, evidence, units))

    # -- the guard

    def streams(self) -> list[tuple[EvidenceLabels, OutcomeStream]]:
        """The evidence for each limit that is set."""
        guard, variants = self.config.guard, self.rollout.variants
        found = [
            (EvidenceLabels(variants[name].version, name, limit), stream)
            for name, evidence in self.evidence.candidates.items()
            for limit, stream in evidence.streams(guard).items()
        ]
        shadow = self.shadow
        if shadow is not None and guard.max_disagreement is not None:
            found.append((EvidenceLabels(shadow.version, "", "disagreement"), shadow.disagreement))
        return found

    def give_streams(self) -> list[tuple[EvidenceLabels, OutcomeStream]]:
        """Return the streams for the judging worker; slow is relative to this worker's baseline."""
        self.evidence.follow_latency()
        return self.streams()

    def judge(self) -> dict[int, Verdict]:
        """Judge all variants and the shadow; return a verdict for each version that broke a limit.

        Adds the outcomes counted since the last call to the evidence first.
        """
        broken = self.evidence.judge(self.decisions)
        shadow = self.shadow
        if (
            shadow is not None
            and not self.rollout.shadow_stopped
            and (verdict := shadow.judge(self.config.guard)) is not None
        ):
            broken[shadow.version] = verdict
        return broken


def _gave_up(outcome: CallerOutcome) -> bool:
    """Return True if the client disconnected, or set a shorter limit than the model's timeout."""
    return isinstance(outcome.error, CALLER_GONE) or (
        isinstance(outcome.error, DeadlineExceeded) and outcome.tight_deadline
    )


def _is_evidence(outcome: CallerOutcome) -> bool:
    """Return True if the outcome is evidence about the version."""
    match outcome.error:
        case NotReady() | Overloaded() | SequenceEnded():
            return False
        case InvalidInput() if outcome.outputs is not None:
            return isinstance(outcome.error, TooLarge)  # else an unknown output was named
    return True


def _release(
    evidence: VariantEvidence, units: Collection[tuple[OutcomeStream, Unit]], fails: bool | None
) -> None:
    """Count a failure that the other side answered; a failure on both sides is not evidence."""
    evidence.failed_on_both += fails is True
    for stream, unit in units:
        stream.release(unit, bad=fails is False)
