"""The rollout watcher: reads the rollouts file and the state folder, and has the guard judge."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import structlog

from app.repository import NEVER_SEEN, ConfigProblems, Problem, log_problems, settled_stamp
from app.rollouts.config import RolloutConfig, load_rollouts
from app.rollouts.decisions import Decision, DecisionKey, Decisions, DecisionStore
from app.rollouts.events import Restored, RolledBack, RolloutEvent
from app.rollouts.rollouts import Rollouts

log = structlog.get_logger("cohort")


class _SyncResult(NamedTuple):
    """The outcome of one pass over the state folder; `decisions` is None if it is unreadable."""

    saved: Mapping[DecisionKey, Decision]
    removed: frozenset[DecisionKey]
    decisions: Decisions | None
    problems: tuple[str, ...]


class RolloutWatcher:
    """Applies the rollouts file and the state folder to the rollouts of this process.

    An invalid file changes nothing.

    initialized: Whether a valid file was ever read, or found missing. Until then no model is
        loaded, because it is not known which versions may receive traffic.

    path: The rollouts file; it may be missing.
    store: The decisions that processes share.
    rollouts: The rollouts of this process.
    """

    def __init__(self, path: Path, store: DecisionStore, rollouts: Rollouts) -> None:
        self.initialized = False
        self._path = path
        self._store = store
        self._rollouts = rollouts
        self._stamp_seen = NEVER_SEEN
        self._file_problems: tuple[Problem, ...] = ()
        self._state_problems: tuple[str, ...] = ()
        self._followed = False
        self._sync_lock = asyncio.Lock()

    @property
    def valid(self) -> bool:
        """Whether the rollouts file could be read; a missing file is valid."""
        return not self._file_problems

    @property
    def state_problems(self) -> tuple[str, ...]:
        """What is wrong with the state folder, in sentences."""
        return self._state_problems

    def problems(self, *, settled: bool) -> list[str]:
        """What is wrong, in sentences; until models are `settled`, no version counts as missing."""
        missing = self._rollouts.problems() if settled else []
        return [*map(str, self._file_problems), *self._state_problems, *missing]

    def loading_reason(self) -> str:
        """Why the first models are not loaded yet."""
        if self.initialized or not self._file_problems:
            return "loading models"
        return f"the rollouts file is invalid: {self._file_problems[0]}"

    # -- the operator's file

    async def check_file(self) -> None:
        """Follow the file, if it has changed and is no longer being written."""
        stamp = await settled_stamp(self._path, self._stamp_seen)
        if stamp == self._stamp_seen:
            return
        try:
            configs = await asyncio.to_thread(load_rollouts, self._path)
            # A version that enters may be rolled back already: it must not get traffic meanwhile.
            decisions = await asyncio.to_thread(self._decisions)
        except ConfigProblems as error:
            self._stamp_seen = stamp
            self._refuse(error.problems)
            return
        self._stamp_seen = stamp
        self._follow(configs)
        if decisions is not None:
            self._rollouts.follow(decisions)

    def _decisions(self) -> Decisions | None:
        try:
            return self._store.read()[0]
        except OSError:
            return None  # `sync` reports it

    def _refuse(self, problems: tuple[Problem, ...]) -> None:
        self._file_problems = problems
        log_problems(log, "rollouts file invalid", problems, keeps_previous=self.initialized)

    def _follow(self, configs: Mapping[str, RolloutConfig]) -> None:
        before = {model: live.config for model, live in self._rollouts.live.items()}
        self._file_problems = ()
        self.initialized = True
        self._rollouts.apply(configs)
        for model, config in configs.items():
            if model in self._rollouts.waiting:
                baseline = config.rollout.baseline_version
                log.warning("rollout waits for its baseline", model=model, version=baseline)
            elif before.get(model) != config:
                variants = config.rollout.variants.values()
                weights = {one.name: f"{one.version}: {one.weight:g}" for one in variants}
                log.info("rollout changed", model=model, variants=weights)
        for model in before.keys() - configs.keys():
            log.info("rollout ended", model=model)

    # -- the guard and the state folder

    async def step(self) -> None:
        """Judge what came in, and exchange decisions with other processes."""
        self._rollouts.judge()
        await self.sync()

    async def sync(self) -> None:
        """Write what was decided and cleared here, and follow what other processes decided."""
        rollouts = self._rollouts
        async with self._sync_lock:
            done = await asyncio.to_thread(
                self._sync, dict(rollouts.pending_records), frozenset(rollouts.pending_clears)
            )
            for key, decision in done.saved.items():
                if rollouts.pending_records.get(key) == decision:
                    del rollouts.pending_records[key]
            if done.decisions is not None:
                self._end_outdated(done.decisions)
                rollouts.follow(done.decisions)
            rollouts.pending_clears -= done.removed
            for problem in done.problems:
                if problem not in self._state_problems:
                    log.error("state folder problem", problem=problem)
            self._state_problems = done.problems

    def _sync(
        self,
        records: Mapping[DecisionKey, Decision],
        clears: frozenset[DecisionKey],
    ) -> _SyncResult:
        saved, removed, problems = {}, set(), []
        for model, version in clears:
            try:
                self._store.clear(model, version)
                removed.add((model, version))
            except OSError as error:
                problems.append(
                    f"a decision cannot be removed from the state folder: {error.strerror}"
                )
        for (model, version), decision in records.items():
            try:
                self._store.record(model, decision)
                saved[model, version] = decision
            except OSError as error:
                problems.append(
                    f"a decision cannot be written to the state folder: {error.strerror}"
                )
        try:
            decisions, broken = self._store.read()
        except OSError as error:
            problems.append(f"the state folder cannot be read: {error.strerror}")
            return _SyncResult(saved, frozenset(removed), None, tuple(problems))
        return _SyncResult(saved, frozenset(removed), decisions, (*problems, *broken))

    def _end_outdated(self, decisions: Decisions) -> None:
        """At the first sync, end decisions about versions that left their rollout meanwhile.

        Later on only an edit ends one: another replica may have read a newer file than this one
        did, and decided about a version that this one does not know.
        """
        if self._followed or not self._rollouts.live:
            return
        self._followed = True
        if self._stamp_seen is None:
            return
        for model, versions in self._rollouts.pinned.items():
            for version, decision in decisions.get(model, {}).items():
                if version not in versions and _decided_at(decision) < self._stamp_seen[0] / 1e9:
                    self._rollouts.pending_clears.add((model, version))


def _decided_at(decision: Decision) -> float:
    try:
        return datetime.fromisoformat(decision.at).timestamp()
    except ValueError:
        return float("inf")


def log_event(event: RolloutEvent) -> None:
    """Log what happened to a variant."""
    match event:
        case RolledBack(model, version, variants, shadow, reason, detail, decided_here):
            log.error(
                "rolled back",
                model=model,
                version=version,
                variants=list(variants),
                shadow_stopped=shadow,
                reason=reason,
                detail=detail,
                decided_here=decided_here,
            )
        case Restored(model, version, variants):
            log.info("rollback ended", model=model, version=version, variants=list(variants))
