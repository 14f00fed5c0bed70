"""One model's rollout at work: who gets whom, and what becomes of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from time import monotonic

from app.batching import Outputs, Reply
from app.errors import CohortError, DeadlineExceeded, InferenceFailed, InvalidInput
from app.rollouts.choosing import choose, is_sampled
from app.rollouts.config import RolloutConfig
from app.rollouts.decisions import Decision
from app.rollouts.events import Observer
from app.rollouts.evidence import VariantEvidence
from app.rollouts.latency import Latency
from app.rollouts.rollout import Rollout, Variant
from app.rollouts.sequential_test import Counts, Evidence, Verdict, judge, renew, weigh_alone
from app.rollouts.shadow import Shadowing
from app.rollouts.side_queue import RuntimeDependencies, SideQueue
from app.tensors import Arrays, TensorSpec

ENOUGH = 100
"""Answers of the baseline before its p95 means something."""

CHECKS = 16
"""Failed requests that may wait for their second opinion; more say nothing."""


class LiveRollout:
    """The rollout of one model, what was decided about it, and the evidence.

    `rollout` is the operator's with the server's decisions in it. A request that failed on one side
    is run on the other, too, out of the caller's way: an input that fails on both is the caller's
    doing, and speaks against neither. So a caller who sticks to a variant, and sends it what no
    version takes, cannot have it rolled back, nor hide its failures behind the baseline's.
    """

    def __init__(
        self, config: RolloutConfig, dependencies: RuntimeDependencies, observe: Observer
    ) -> None:
        self._machinery = dependencies
        self._observe = observe
        self._config = config
        self.decisions: Mapping[int, Decision] = {}
        self.rollout: Rollout = config.rollout
        self.latency = Latency()
        self.slow_from: float | None = None  # seconds; fixed between two ticks
        self.trials: dict[str, VariantEvidence] = {}
        self.shadowing: Shadowing | None = None
        self._side_queues: dict[int, SideQueue] = {}
        self._renew(config)

    @property
    def config(self) -> RolloutConfig:
        return self._config

    def configure(self, config: RolloutConfig) -> None:
        """Follow an edit. Evidence stays with a variant until its version or a limit changes."""
        before, self._config = self._config, config
        baseline, was = _baseline(config.rollout), _baseline(before.rollout)
        if config.guard != before.guard or baseline.version != was.version:
            self.trials.clear()
            self.latency, self.slow_from = Latency(), None
            if self.shadowing is not None:
                self.shadowing.evidence, self.shadowing.new = Evidence(), Counts()
        for name, variant in before.rollout.variants.items():
            now = config.rollout.variants.get(name)
            if now is None or now.version != variant.version:
                self.trials.pop(name, None)
        self._renew(config)
        self.decide(self.decisions)

    def decide(self, decisions: Mapping[int, Decision]) -> None:
        """Follow what the server decided. What was rolled back starts anew when that ends."""
        ended = self.decisions.keys() - decisions.keys()
        self.decisions = decisions
        rollout = self._config.rollout
        for name, variant in self._config.rollout.variants.items():
            if name == rollout.baseline:
                continue
            if variant.version in decisions:
                rollout = rollout.rolled_back(name)
            if variant.version in ended:
                self.trials[name] = VariantEvidence()
        shadow = rollout.shadow
        if shadow is not None and shadow.version in decisions:
            if decisions[shadow.version].reason == "disagreement":
                rollout = rollout.without_shadow()
        elif shadow is not None and shadow.version in ended and self.shadowing is not None:
            self.shadowing.close()
            self.shadowing = None
        self.rollout = rollout
        self._renew(self._config)

    def _renew(self, config: RolloutConfig) -> None:
        rollout = config.rollout
        for name in rollout.variants.keys() - {rollout.baseline} - self.trials.keys():
            self.trials[name] = VariantEvidence()
        for version in self._side_queues.keys() - rollout.versions:
            self._side_queues.pop(version).close()
        shadow, running = rollout.shadow, self.shadowing
        if running is not None and (shadow is None or shadow.version != running.shadow.version):
            running.close()
            running = self.shadowing = None
        if shadow is not None and running is None:
            self.shadowing = Shadowing(rollout.model, shadow, self._machinery, self._observe)
        elif shadow is not None and running is not None:
            running.configure(shadow)

    def close(self) -> None:
        """Give up all copies that wait."""
        for lane in self._side_queues.values():
            lane.close()
        if self.shadowing is not None:
            self.shadowing.close()

    # -- a request's way

    def choose(self, key: str | None, ready: Collection[int]) -> Variant:
        """The variant for `key`, for a new random key where it is None."""
        return choose(self.rollout, key, ready)

    def listen(
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
        """Give a reply that also learns from the answer to a request that was chosen, not pinned.

        `started` is on the monotonic clock; a `tight_deadline` caller gave less time than the
        model has. What is refused before it is queued never gets here, nor who leaves.
        """

        def heard(outputs: Outputs | None, error: CohortError | None) -> None:
            seconds = monotonic() - started
            reply(outputs, error)
            if outputs is None:
                self._failed(variant, arrays, error, seconds, tight_deadline=tight_deadline)
                return
            self._succeeded(variant, seconds)
            shadowing = self.shadowing
            if (
                shadowing is not None
                and shadowing.shadow.version != version  # it would agree with itself
                and is_sampled(self.rollout)
            ):
                shadowing.offer(arrays, specs, outputs)

        return heard

    def _succeeded(self, variant: str, seconds: float) -> None:
        baseline = variant == self.rollout.baseline
        for trial in self._evidence_of(variant):
            trial.errors.count(baseline=baseline, bad=False)
        self._timed(variant, seconds)

    def _timed(self, variant: str, seconds: float) -> None:
        baseline = variant == self.rollout.baseline
        if baseline:
            self.latency.add(seconds)
        if (limit := self.slow_from) is not None:
            for trial in self._evidence_of(variant):
                trial.slow.count(baseline=baseline, bad=seconds > limit)

    def _failed(
        self,
        variant: str,
        arrays: Arrays,
        error: CohortError | None,
        seconds: float,
        *,
        tight_deadline: bool,
    ) -> None:
        baseline = variant == self.rollout.baseline
        if isinstance(error, DeadlineExceeded):
            if not tight_deadline:
                self._timed(variant, seconds)
                for trial in self._evidence_of(variant):
                    trial.errors.count(baseline=baseline, bad=True)
        elif isinstance(error, InferenceFailed) and not error.blames_input:
            for trial in self._evidence_of(variant):
                trial.errors.count(baseline=baseline, bad=True)
        elif isinstance(error, InferenceFailed | InvalidInput):
            for name in [variant] if not baseline else list(self.trials):
                self._check(name, arrays, baseline=baseline)

    def _check(self, name: str, arrays: Arrays, *, baseline: bool) -> None:
        """Run an input that failed on the other side, before it counts."""
        trial = self.trials.get(name)
        variants = self.rollout.variants
        if trial is None or name not in variants or variants[name].rolled_back:
            return
        other = variants[name] if baseline else variants[self.rollout.baseline]
        count = partial(_count_checked, trial, baseline)
        try:
            self._side_queue(other.version).submit(arrays, count)
        except InvalidInput as error:
            count(None, error)
        except CohortError:
            return  # no room, or nobody there to ask

    def _side_queue(self, version: int) -> SideQueue:
        if version not in self._side_queues:
            model = self.rollout.model
            self._side_queues[version] = SideQueue(
                self._machinery, model, version, most=CHECKS, shadow=False
            )
        return self._side_queues[version]

    def _evidence_of(self, variant: str) -> Collection[VariantEvidence]:
        """Whose evidence an outcome of `variant` belongs to: the baseline's to everybody's."""
        if variant == self.rollout.baseline:
            return self.trials.values()
        trial = self.trials.get(variant)
        return () if trial is None else (trial,)

    # -- the guard

    def tick(self) -> dict[int, Verdict]:
        """Weigh what came in since the last tick: the versions that broke a limit."""
        guard, rollout = self._config.guard, self.rollout
        broken: dict[int, Verdict] = {}
        for name, trial in self.trials.items():
            variant = rollout.variants[name]
            if variant.rolled_back or variant.version == _baseline(rollout).version:
                continue
            if (verdict := trial.judge(guard)) is not None:
                broken[variant.version] = verdict
        if (verdict := self._judge_shadow()) is not None and self.shadowing is not None:
            broken[self.shadowing.shadow.version] = verdict
        ratio = guard.max_latency_ratio
        if ratio is not None and self.latency.total >= ENOUGH:
            self.slow_from = self.latency.quantile(0.95) * ratio
            self.latency.forget()
        return broken

    def _judge_shadow(self) -> Verdict | None:
        shadowing, limit = self.shadowing, self._config.guard.max_disagreement
        if shadowing is None or limit is None or self.rollout.shadow_stopped:
            return None
        new, shadowing.new = shadowing.new, Counts()
        if new.total:
            shadowing.evidence = weigh_alone(renew(shadowing.evidence), new, limit)
        return judge({"disagreement": shadowing.evidence}, self._config.guard)


def _baseline(rollout: Rollout) -> Variant:
    return rollout.variants[rollout.baseline]


def _count_checked(
    trial: VariantEvidence, baseline: bool, answer: Arrays | None, error: CohortError | None
) -> None:
    """The second opinion is here: an input that fails on both sides speaks against neither."""
    if answer is None and not isinstance(error, InferenceFailed | InvalidInput):
        return
    trial.failed_on_both += answer is None
    trial.errors.count(baseline=baseline, bad=answer is not None)
