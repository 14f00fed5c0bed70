"""All rollouts of a process: what the operator wants, what was decided, and the guard's tick."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from app.batching import Batcher
from app.errors import InvalidInput, NotFound, did_you_mean, quoted
from app.registry import UNLOADED, Catalog, State
from app.rollouts.config import RolloutConfig
from app.rollouts.decisions import Decision, Decisions
from app.rollouts.description import describe
from app.rollouts.events import Observer, Restored, RolledBack
from app.rollouts.live import LiveRollout
from app.rollouts.rollout import Rollout
from app.rollouts.side_queue import RuntimeDependencies

OPERATOR = "operator"


class Rollouts:
    """Holds a LiveRollout for each model that has a rollout.

    Changes take effect at once. `pending_records` and `pending_clears` are the decisions that
    RolloutWatcher has still to write to the state folder, and to remove from it.
    """

    def __init__(
        self,
        *,
        catalog: Callable[[], Catalog],
        wake: Callable[[Batcher], None],
        observe: Observer,
    ) -> None:
        self.live: dict[str, LiveRollout] = {}
        self.pending_records: dict[tuple[str, int], Decision] = {}
        self.pending_clears: set[tuple[str, int]] = set()
        self._machinery = RuntimeDependencies(catalog, wake)
        self._observe = observe

    # -- what is asked

    @property
    def pinned(self) -> dict[str, frozenset[int]]:
        """The versions that rollouts need, by model."""
        return {model: live.config.rollout.versions for model, live in self.live.items()}

    def version_of(self, model: str, label: str) -> int:
        """The version of a variant. Raises NotFound."""
        live = self.live.get(model)
        if live is None:
            raise NotFound(
                f"model {quoted(model)} has no label {quoted(label)}: labels are the variants of a "
                "rollout, and it has none"
            )
        variants = live.rollout.variants
        if label not in variants:
            raise NotFound(
                f"model {quoted(model)} has no variant {quoted(label)}"
                f"{did_you_mean(label, variants)}"
            )
        return variants[label].version

    def describe(self, model: str) -> dict[str, Any] | None:
        """A model's rollout in plain values, None where it has none."""
        live = self.live.get(model)
        if live is None:
            return None
        pending = any(name == model for name, _ in [*self.pending_records, *self.pending_clears])
        return {**describe(live, self._ready(model)), "saved": not pending}

    def examples(self, model: str) -> list[dict[str, Any]]:
        """What the shadow answered differently. Raises NotFound."""
        live = self._find(model)
        if live.shadowing is None:
            raise NotFound(f"the rollout of model {quoted(model)} has no shadow")
        return live.shadowing.examples()

    def problems(self) -> list[str]:
        """Versions that are named and cannot serve, in sentences."""
        found = []
        for model, live in self.live.items():
            rollout = live.config.rollout
            for name, variant in rollout.variants.items():
                if self._is_missing(model, variant.version):
                    got = "refused" if name == rollout.baseline else "given to the baseline"
                    found.append(
                        f"rollout of {model}: version {variant.version} of variant {name} is not "
                        f"ready; its callers are {got}"
                    )
            if rollout.shadow is not None and self._is_missing(model, rollout.shadow.version):
                found.append(
                    f"rollout of {model}: the shadow's version {rollout.shadow.version} is not "
                    "ready; nothing is copied"
                )
        return found

    def _is_missing(self, model: str, version: int) -> bool:
        """Whether a version is not there or failed; one that loads, or was taken out, is not."""
        entry = self._machinery.catalog().get(model)
        known = entry.versions.get(version) if entry is not None else None
        if known is None:
            return True
        return known.state is State.UNAVAILABLE and known.reason != UNLOADED

    def _ready(self, model: str) -> frozenset[int]:
        entry = self._machinery.catalog().get(model)
        return entry.ready if entry is not None else frozenset()

    def _find(self, model: str) -> LiveRollout:
        live = self.live.get(model)
        if live is None:
            raise NotFound(f"model {quoted(model)} has no rollout{did_you_mean(model, self.live)}")
        return live

    # -- what the operator wants

    def apply(self, configs: Mapping[str, RolloutConfig]) -> None:
        """Follow the file. Decisions about versions that leave their rollout end."""
        for model in self.live.keys() - configs.keys():
            gone = self.live.pop(model)
            self._leave(gone, frozenset())
            gone.close()
        for model, config in configs.items():
            live = self.live.get(model)
            if live is None:
                self.live[model] = LiveRollout(config, self._machinery, self._observe)
            elif config != live.config:
                self._leave(live, config.rollout.versions)
                live.configure(config)

    def _leave(self, live: LiveRollout, stay: frozenset[int]) -> None:
        model = live.config.rollout.model
        gone = (live.config.rollout.versions - stay) & live.decisions.keys()
        if gone:
            self._end(model, live, gone)

    def roll_back(self, model: str, variant: str) -> None:
        """Take a variant's version out, as an operator wishes. Raises NotFound or InvalidInput."""
        live = self._find(model)
        version = self.version_of(model, variant)
        rollout = live.rollout
        if rollout.variants[rollout.baseline].version == version:
            raise InvalidInput(f"{quoted(variant)} is the baseline: there is nobody to go back to")
        if version not in live.decisions:
            decision = Decision.now(version, OPERATOR, "rolled back by an operator")
            self._decide(model, live, decision)

    def clear(self, model: str, variant: str | None = None) -> None:
        """End what was decided about a variant, or about all of a model and its shadow.

        Raises NotFound.
        """
        live = self._find(model)
        if variant is None:
            versions = frozenset(live.decisions)
        else:
            versions = frozenset({self.version_of(model, variant)} & live.decisions.keys())
        self._end(model, live, versions)

    # -- what is decided

    def tick(self) -> None:
        """Judge every variant on what came in since the last tick."""
        for model, live in self.live.items():
            for version, verdict in live.tick().items():
                self._decide(model, live, Decision.now(version, verdict.reason, str(verdict)))

    def follow(self, decisions: Decisions) -> None:
        """Take over what stands in the state folder, where other processes write, too."""
        for model, live in self.live.items():
            stand = {
                version: decision
                for version, decision in decisions.get(model, {}).items()
                if (model, version) not in self.pending_clears
            }
            stand |= {
                version: one
                for (name, version), one in self.pending_records.items()
                if name == model
            }
            before = live.decisions
            if stand == before:
                continue
            live.decide(stand)
            for version in sorted(stand.keys() - before.keys()):
                self._tell(model, live, stand[version], ours=False)
            for version in sorted(before.keys() - stand.keys()):
                self._observe(Restored(model, version, _names(live.rollout, version)))

    def close(self) -> None:
        """Give up all copies that wait."""
        for live in self.live.values():
            live.close()

    def _decide(self, model: str, live: LiveRollout, decision: Decision) -> None:
        self.pending_records[model, decision.version] = decision
        self.pending_clears.discard((model, decision.version))
        live.decide({**live.decisions, decision.version: decision})
        self._tell(model, live, decision, ours=True)

    def _end(self, model: str, live: LiveRollout, versions: frozenset[int]) -> None:
        for version in versions:
            self.pending_records.pop((model, version), None)
            self.pending_clears.add((model, version))
        live.decide({v: one for v, one in live.decisions.items() if v not in versions})
        for version in sorted(versions):
            self._observe(Restored(model, version, _names(live.rollout, version)))

    def _tell(self, model: str, live: LiveRollout, decision: Decision, *, ours: bool) -> None:
        rollout = live.rollout
        stopped = (
            rollout.shadow_stopped
            and rollout.shadow is not None
            and rollout.shadow.version == decision.version
        )
        names = _names(rollout, decision.version)
        if names or stopped:
            reason, detail = decision.reason, decision.detail
            self._observe(RolledBack(model, decision.version, names, stopped, reason, detail, ours))


def _names(rollout: Rollout, version: int) -> list[str]:
    return [
        name
        for name, variant in rollout.variants.items()
        if variant.version == version and name != rollout.baseline
    ]
