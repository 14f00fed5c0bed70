"""All rollouts of a process: the operator's configs, the decisions, and the guard's interval."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from time import monotonic
from typing import Any, NamedTuple

from cohort.errors import InvalidInput, NotFound, did_you_mean, quoted
from cohort.registry import NOT_FAILED, State
from cohort.repository import ModelConfig, Signatures
from cohort.rollouts.config import RolloutConfig
from cohort.rollouts.decision_store import UNREADABLE, Decision, DecisionKey, Recorded
from cohort.rollouts.description import describe_rollout
from cohort.rollouts.events import Restored, RolledBack, RolloutObserver
from cohort.rollouts.judgement import threshold_of
from cohort.rollouts.live import EvidenceLabels, LiveRollout
from cohort.rollouts.ramps import RampId, Ramps
from cohort.rollouts.side_queue import CatalogSource
from cohort.rollouts.units import OutcomeStream

OPERATOR = "operator"
"""The reason of a rollback by an operator."""

UNKNOWN = "unknown"
"""The reason while the decisions are not known."""

NOTHING_RECORDED = Recorded({}, {}, ())


class LimitEvidence(NamedTuple):
    """The evidence about one limit of a model's rollout, for metrics.

    threshold: The log of the e-value at which the limit counts as broken.
    """

    model: str
    labels: EvidenceLabels
    stream: OutcomeStream
    threshold: float


class Rollouts:
    """The rollouts of all models. Changes take effect at once.

    live: A LiveRollout for each model that has a rollout.
    waiting: Configs of models whose new baseline is not ready; until it is, traffic is routed as
        before.
    pending_records: Decisions that RolloutWatcher must write to the state folder.
    pending_clears: Decisions that it must end there.
    ramps: The ramps of all models.

    catalog: Returns the catalog of loaded versions.
    observe: Called with each RolloutEvent.
    """

    def __init__(self, catalog: CatalogSource, observe: RolloutObserver) -> None:
        self.live: dict[str, LiveRollout] = {}
        self.waiting: dict[str, RolloutConfig] = {}
        self.pending_records: dict[DecisionKey, Decision] = {}
        self.pending_clears: dict[DecisionKey, Decision] = {}
        self.ramps = Ramps(self._ready, observe)
        self._catalog = catalog
        self._observe = observe
        self._judged: float | None = None  # time of the last judgement, on the monotonic clock
        self._recorded = NOTHING_RECORDED
        self._held = ""  # why candidates get no traffic, if decisions are unknown

    # -- queries

    @property
    def pinned(self) -> dict[str, frozenset[int]]:
        """The versions that rollouts need, by model."""
        needed = {model: live.config.rollout.versions for model, live in self.live.items()}
        for model, config in self.waiting.items():
            needed[model] = needed.get(model, frozenset()) | config.rollout.versions
        return needed

    def version_of(self, model: str, label: str) -> int:
        """Return the version of a variant. Raises NotFound."""
        live = self.live.get(model)
        if live is None:
            raise NotFound(
                f"model {quoted(model)} has no label {quoted(label)}: labels are the variants of a "
                "rollout, and this model has no rollout"
            )
        variants = live.rollout.variants
        if label not in variants:
            raise NotFound(
                f"variant {quoted(label)} of model {quoted(model)} not found"
                f"{did_you_mean(label, variants)}"
            )
        return variants[label].version

    def describe(self, model: str) -> dict[str, Any] | None:
        """Describe a model's rollout in plain values; None if it has no rollout."""
        live = self.live.get(model)
        if live is None:
            return None
        pending = any(name == model for name, _ in [*self.pending_records, *self.pending_clears])
        entry = self._catalog().get(model)
        lost = {} if entry is None else entry.batching_lost(live.rollout.baseline_version)
        described = describe_rollout(live, self._ready(model), lost)
        return {**described, "ramp": self.ramps.describe(live), "saved": not pending}

    def rolled_back(self, models: Collection[str]) -> dict[str, str]:
        """Return why versions of these models receive no traffic, by model and version."""
        return {
            f"{model}/{version}": decision.detail or decision.reason
            for model, live in self.live.items()
            if model in models
            for version, decision in live.decisions.items()
            if version in live.config.rollout.versions
        }

    def evidence(self) -> Iterator[LimitEvidence]:
        """Yield the evidence for each limit that is set."""
        for model, live in list(self.live.items()):  # also called on a scrape's thread
            guard = live.config.guard
            for labels, stream in live.streams():
                yield LimitEvidence(model, labels, stream, threshold_of(stream.evidence, guard))

    def examples(self, model: str) -> list[dict[str, Any]]:
        """Return the last requests on which the shadow disagreed. Raises NotFound."""
        live = self._find(model)
        if live.shadow is None:
            raise NotFound(f"the rollout of model {quoted(model)} has no shadow")
        return live.shadow.examples()

    def problems(self) -> list[str]:
        """Return a sentence for each version of a rollout that cannot serve its callers."""
        configs = {model: live.config for model, live in self.live.items()} | self.waiting
        waiting = [
            f"the rollout of model {quoted(model)} waits until version "
            f"{config.rollout.baseline_version}, its baseline, is ready"
            for model, config in self.waiting.items()
        ]
        return waiting + [
            problem
            for model, config in configs.items()
            for problem in (
                *config.rollout.problems(
                    [one for one in config.rollout.versions if self._is_missing(model, one)]
                ),
                *config.rollout.misfits(self._signatures(model)),
                *(config.misfits_of_state() if self._has_state(model) else ()),
            )
        ]

    def _signatures(self, model: str) -> Signatures:
        """Return signatures by version, except for configs with `allow_signature_change`."""
        entry = self._catalog().get(model)
        versions = {} if entry is None else entry.versions
        return {
            number: one.signature
            for number, one in versions.items()
            if not (one.source.config or ModelConfig()).allow_signature_change
        }

    def _has_state(self, model: str) -> bool:
        entry = self._catalog().get(model)
        versions = {} if entry is None else entry.versions
        return any((one.source.config or ModelConfig()).state for one in versions.values())

    def _is_missing(self, model: str, version: int) -> bool:
        """Return True if a version is unknown or failed, but not if it is loading or unloaded."""
        entry = self._catalog().get(model)
        known = entry.versions.get(version) if entry is not None else None
        if known is None:
            return True
        return known.state is State.UNAVAILABLE and known.reason not in NOT_FAILED

    def _ready(self, model: str) -> frozenset[int]:
        entry = self._catalog().get(model)
        return entry.ready if entry is not None else frozenset()

    def _find(self, model: str) -> LiveRollout:
        live = self.live.get(model)
        if live is None:
            raise NotFound(f"model {quoted(model)} has no rollout{did_you_mean(model, self.live)}")
        return live

    # -- the operator's file

    def apply(self, configs: Mapping[str, RolloutConfig], *, missing: bool = False) -> None:
        """Apply the rollouts file. Decisions about versions that leave their rollout end.

        A rollout whose baseline is not ready, of a model that serves, waits for `begin_waiting`.

        missing: True if there is no file: then rollouts end, and decisions stay; default False.
        """
        for model in self.live.keys() - configs.keys():
            gone = self.live.pop(model)
            self.ramps.end(model, missing=missing)
            if not missing:
                self._clear(gone, gone.config.rollout.versions & gone.decisions.keys())
            gone.close()
        self.waiting = dict(configs)
        self.begin_waiting()

    def begin_waiting(self) -> None:
        """Apply waiting configs whose baseline is ready, or whose model has no ready version."""
        for model, config in list(self.waiting.items()):
            live, ready = self.live.get(model), self._ready(model)
            if live is None or config != live.config:
                if ready and config.rollout.baseline_version not in ready:
                    continue
                self._begin(model, config)
            del self.waiting[model]

    def _begin(self, model: str, config: RolloutConfig) -> None:
        live = self.live.get(model)
        if live is None:
            self.live[model] = LiveRollout(config, self._catalog, self._observe)
        else:
            left = live.config.rollout.versions - config.rollout.versions
            self._clear(live, left & live.decisions.keys())
            live.configure(config)
        self.ramps.configure(self.live[model])
        # A version that enters may be rolled back already.
        if self._held:
            self.hold(self._held)
        else:
            self.follow(self._recorded)

    def roll_back(self, model: str, variant: str) -> Decision:
        """Roll a variant's version back for an operator; return the decision in force.

        Raises NotFound or InvalidInput.
        """
        live = self._find(model)
        version = self.version_of(model, variant)
        if version == live.rollout.baseline_version:
            raise InvalidInput(
                f"{quoted(variant)} is the baseline: there is nothing to roll back to"
            )
        decided = live.decisions.get(version)
        if decided is None or decided.reason == UNKNOWN:
            decided = Decision.now(version, OPERATOR, "by an operator")
            self._decide(live, decided)
        return decided

    def adopt(self, model: str, decision: Decision) -> None:
        """Follow a decision of another worker of this host, before the state folder contains it."""
        live = self.live.get(model)
        known = None if live is None else live.decisions.get(decision.version)
        if live is not None and (known is None or known.reason == UNKNOWN):
            self._replace(live, {**live.decisions, decision.version: decision})

    def clear(self, model: str, variant: str | None = None) -> None:
        """Clear the decisions about a variant, or about all variants and the shadow of a model.

        Raises NotFound.
        """
        live = self._find(model)
        versions = frozenset(live.decisions)
        if variant is not None:
            versions &= {self.version_of(model, variant)}
        self._clear(live, versions)

    # -- decisions

    def judge(self, *, decide: bool = True) -> None:
        """Judge every variant and shadow with the outcomes counted since the last call.

        Ramps count the time since then. Without `decide` only ramps are updated: another worker
        judges.
        """
        now = monotonic()
        seconds = 0.0 if self._judged is None else now - self._judged
        self._judged = now
        for live in self.live.values():
            for version, verdict in (live.judge() if decide else {}).items():
                self._decide(live, Decision.now(version, verdict.reason, str(verdict)))
            self.ramps.tick(live, seconds)

    def follow(self, recorded: Recorded, moved: Collection[RampId] = ()) -> None:
        """Apply the records in the state folder, which other processes also write.

        A known decision ends if the folder records that it was cleared. If the folder has no record
        of it, the decision stays and is written again.

        moved: The ramps that this process has just moved there; default: empty.
        """
        self._recorded, self._held = recorded, ""
        for model, live in self.live.items():
            self._replace(live, self._in_force(model, live))
        self.ramps.follow(self.live, recorded.ramps, moved)

    def _in_force(self, model: str, live: LiveRollout) -> dict[int, Decision]:
        """Return the decisions of the folder, and those known only here."""
        cleared = self._recorded.cleared.get(model, frozenset())
        valid = {
            version: decision
            for version, decision in self._recorded.decisions.get(model, {}).items()
            if (model, version) not in self.pending_clears
        }
        for version, decision in live.decisions.items():
            standing = valid.get(version)
            torn = standing is not None and standing.reason == UNREADABLE
            ended = decision.digest in cleared or (model, version) in self.pending_clears
            if ended or decision.reason == (UNREADABLE if torn else UNKNOWN):
                continue
            if standing is None or torn:
                self.pending_records.setdefault((model, version), decision)
        return valid | {
            version: decision
            for (name, version), decision in self.pending_records.items()
            if name == model
        }

    def hold(self, why: str) -> None:
        """Stop traffic to all candidates until `follow`; `why` is a reason for people.

        A known decision stays.
        """
        self._held = why
        for live in self.live.values():
            rollout = live.config.rollout
            unknown = {
                rollout.variants[name].version: Decision(
                    rollout.variants[name].version, UNKNOWN, why
                )
                for name in rollout.candidates
                if rollout.variants[name].version != rollout.baseline_version
            }
            self._replace(live, {**unknown, **live.decisions})

    def _replace(self, live: LiveRollout, valid: Mapping[int, Decision]) -> None:
        """Apply all decisions about a model, and report the new and the ended ones."""
        before = live.decisions
        if valid == before:
            return
        live.apply_decisions(valid)
        for version in sorted(valid.keys() - before.keys()):
            self._report(live, valid[version], decided_here=False)
        for version in sorted(before.keys() - valid.keys()):
            by = self._recorded.cleared_by.get(before[version].digest, "")
            names = live.rollout.candidates_of(version)
            self._observe(Restored(live.rollout.model, version, names, by))

    def close(self) -> None:
        """Cancel all waiting copies."""
        for live in self.live.values():
            live.close()

    def _decide(self, live: LiveRollout, decision: Decision) -> None:
        key = live.rollout.model, decision.version
        live.apply_decisions({**live.decisions, decision.version: decision})
        self._report(live, decision, decided_here=True)
        self.pending_records[key] = decision
        self.pending_clears.pop(key, None)

    def _clear(self, live: LiveRollout, versions: frozenset[int]) -> None:
        model = live.rollout.model
        for version in versions:
            self.pending_records.pop((model, version), None)
            self.pending_clears[model, version] = live.decisions[version]
        self.ramps.restart(live, versions)
        live.apply_decisions({v: one for v, one in live.decisions.items() if v not in versions})
        for version in sorted(versions):
            self._observe(Restored(model, version, live.rollout.candidates_of(version)))

    def _report(self, live: LiveRollout, decision: Decision, *, decided_here: bool) -> None:
        rollout = live.rollout
        stopped = (
            rollout.shadow_stopped
            and rollout.shadow is not None
            and rollout.shadow.version == decision.version
        )
        names = rollout.candidates_of(decision.version)
        if names or stopped:
            self._observe(
                RolledBack(
                    rollout.model,
                    decision.version,
                    names,
                    stopped,
                    decision.reason,
                    decision.detail,
                    decided_here,
                    self._incident(rollout.model, decision.version),
                )
            )

    def _incident(self, model: str, version: int) -> str:
        """Return a name of a version's rollback that differs from earlier, cleared ones."""
        ended = set(self._recorded.cleared.get(model, ()))
        ended |= {one.digest for (name, _), one in self.pending_clears.items() if name == model}
        return ".".join([model, str(version), *sorted(ended)])
