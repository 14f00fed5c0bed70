"""One model's rollout in use: the choice of variants, and the evidence from their responses."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from time import monotonic

from app.batching import Outputs, Reply
from app.errors import CohortError, DeadlineExceeded, InferenceFailed, InvalidInput
from app.rollouts.config import RolloutConfig
from app.rollouts.decisions import Decision
from app.rollouts.events import RolloutObserver
from app.rollouts.evidence import RolloutEvidence, VariantEvidence
from app.rollouts.rollout import Rollout, Variant
from app.rollouts.sequential_test import Verdict
from app.rollouts.shadow import ShadowRunner
from app.rollouts.side_queue import CatalogSource, SideQueue
from app.tensors import Arrays, TensorSpec

MAX_PENDING_CHECKS = 16
"""Failed requests that may wait to be checked on a version; further ones are not checked."""


class LiveRollout:
    """The rollout of one model, the decisions about it, and the evidence.

    A request that failed on one side, baseline or variant, is run on the other after its response.
    An input that fails on both is the caller's mistake, and is evidence against neither. So a
    sticky caller that sends invalid inputs cannot have its variant rolled back, nor hide the
    variant's failures behind the baseline's.

    rollout: The operator's rollout with the server's decisions applied.
    decisions: The decisions in force, by version.
    evidence: The evidence against each candidate.
    shadow: Runs the shadow's copies; None without a shadow.
    ramp_requests: How many requests the variant of the ramp was chosen for.

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
        self._side_queues: dict[int, SideQueue] = {}
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
        for version in self._side_queues.keys() - config.rollout.versions:
            self._side_queues.pop(version).close()
        self._apply()
        self._follow_shadow()

    def apply_decisions(self, decisions: Mapping[int, Decision]) -> None:
        """Replace the decisions in force, by version.

        The variants of decided versions are rolled back. Where a version has no decision any more,
        its evidence is discarded and its shadow starts again.
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
        """Cancel all copies that wait."""
        for side_queue in self._side_queues.values():
            side_queue.close()
        if self.shadow is not None:
            self.shadow.close()

    # -- the path of a request

    def choose(self, key: str | None, ready: Collection[int]) -> Variant:
        """Pick the variant for a caller's `key`, or for a new random key where it is None."""
        variant = self.rollout.choose(key, ready)
        ramp = self.rollout.ramp
        if ramp is not None and ramp.variant == variant.name:
            self.ramp_requests += 1
        return variant

    def observe_reply(
        self,
        variant: str,
        version: int,
        specs: Sequence[TensorSpec],
        arrays: Arrays,
        reply: Reply,
        *,
        started: float,
        tight_deadline: bool,
    ) -> Reply:
        """Wrap the reply to a request whose variant the rollout chose, to count its outcome.

        Requests rejected before queuing and cancelled ones never call it, and are no evidence.

        variant: The variant that was chosen.
        version: Its version.
        specs: The specs of the outputs, in the model's order.
        arrays: The request's inputs by name.
        reply: Called first, with the outputs or the error.
        started: When the request arrived, in seconds on the monotonic clock.
        tight_deadline: Whether the caller gave less time than the model's own timeout; then an
            exceeded deadline is not evidence.
        """

        def replied(outputs: Outputs | None, error: CohortError | None) -> None:
            seconds = monotonic() - started
            reply(outputs, error)
            if outputs is None:
                self._failed(variant, arrays, error, seconds, tight_deadline=tight_deadline)
                return
            self.evidence.count_outcome(variant, bad=False)
            self.evidence.count_latency(variant, seconds)
            shadow = self.shadow
            if (
                shadow is not None
                and shadow.version != version  # it would agree with itself
                and self.rollout.samples_shadow()
            ):
                shadow.offer(arrays, specs, outputs)

        return replied

    def _failed(
        self,
        variant: str,
        arrays: Arrays,
        error: CohortError | None,
        seconds: float,
        *,
        tight_deadline: bool,
    ) -> None:
        if isinstance(error, DeadlineExceeded):
            if not tight_deadline:
                self.evidence.count_outcome(variant, bad=True)
                self.evidence.count_latency(variant, seconds)
        elif isinstance(error, InferenceFailed) and not error.blames_input:
            self.evidence.count_outcome(variant, bad=True)
        elif isinstance(error, InferenceFailed | InvalidInput):
            if variant == self.rollout.baseline:
                for name in self.rollout.candidates:
                    self._check(name, arrays, failed_on_baseline=True)
            elif variant in self.rollout.candidates:
                self._check(variant, arrays, failed_on_baseline=False)

    def _check(self, candidate: str, arrays: Arrays, *, failed_on_baseline: bool) -> None:
        """Run an input that failed on one side on the other, before it counts."""
        rollout = self.rollout
        if rollout.variants[candidate].rolled_back:
            return
        other = rollout.variants[candidate if failed_on_baseline else rollout.baseline]
        evidence = self.evidence.candidates[candidate]
        count = partial(_count_checked, evidence, failed_on_baseline)
        try:
            self._side_queue(other.version).submit(arrays, count)
        except InvalidInput as error:
            count(None, error)
        except CohortError:
            return  # no room, or the other version is not ready

    def _side_queue(self, version: int) -> SideQueue:
        if version not in self._side_queues:
            model = self.rollout.model
            self._side_queues[version] = SideQueue(
                self._catalog, model, version, max_requests=MAX_PENDING_CHECKS, shadow=False
            )
        return self._side_queues[version]

    # -- the guard

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


def _count_checked(
    evidence: VariantEvidence,
    failed_on_baseline: bool,
    answer: Arrays | None,
    error: CohortError | None,
) -> None:
    """Count a failure that the other side answered; a failure on both sides is not evidence."""
    if answer is None and not isinstance(error, InferenceFailed | InvalidInput):
        return
    evidence.failed_on_both += answer is None
    evidence.errors.count(baseline=failed_on_baseline, bad=answer is not None)
