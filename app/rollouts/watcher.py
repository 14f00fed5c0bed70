"""What keeps rollouts going: the operator's file, the guard's tick, and the state folder."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import structlog

from app.repository import ConfigProblems, Problem
from app.rollouts.config import RolloutConfig, load_rollouts
from app.rollouts.decisions import Decision, Decisions, DecisionStore
from app.rollouts.events import Dropped, Restored, RolledBack, RolloutEvent
from app.rollouts.rollouts import Rollouts

log = structlog.get_logger("cohort")

QUIET = 0.25
"""Seconds a file must have been as it is: editors and copies write in parts."""

Stamp = tuple[int, int, int] | None
"""Of a file: when it changed, its size and its number. None: there is no file."""

DecisionKey = tuple[str, int]


class _SyncResult(NamedTuple):
    """What became of an sync with the state folder. `decisions` is None where unreadable."""

    saved: Mapping[DecisionKey, Decision]
    removed: frozenset[DecisionKey]
    decisions: Decisions | None
    problems: tuple[str, ...]


class RolloutWatcher:
    """Keeps `rollouts` in step with the file and the state folder. An invalid file changes nothing.

    `initialized` is whether a valid file was ever read, or known to be missing. Until then no model
    is loaded: which versions may have traffic is not known.
    """

    def __init__(self, path: Path, state: DecisionStore, rollouts: Rollouts) -> None:
        self.initialized = False
        self._path = path
        self._state = state
        self._rollouts = rollouts
        self._seen: Stamp = (-1, -1, -1)
        self._broken: tuple[Problem, ...] = ()
        self._troubles: tuple[str, ...] = ()
        self._followed = False
        self._syncing = asyncio.Lock()

    @property
    def valid(self) -> bool:
        """Whether the rollouts file could be read; a missing file is valid."""
        return not self._broken

    def problems(self, *, settled: bool) -> list[str]:
        """What is wrong, in sentences; before all is `settled`, no version is missing."""
        missing = self._rollouts.problems() if settled else []
        return [*map(str, self._broken), *self._troubles, *missing]

    def waits_for(self) -> str:
        """Why the first models are not loaded."""
        if self.initialized or not self._broken:
            return "loading models"
        return f"nobody can say who gets which version: {self._broken[0]}"

    # -- the operator's file

    async def check_file(self) -> None:
        """Follow the file, where it changed and lies still."""
        stamp = await asyncio.to_thread(self._stamp)
        if stamp == self._seen:
            return
        while stamp is not None and abs(time.time() - stamp[0] / 1e9) < QUIET:
            before = stamp
            await asyncio.sleep(QUIET)
            stamp = await asyncio.to_thread(self._stamp)
            if stamp == before:
                break
        try:
            configs = await asyncio.to_thread(load_rollouts, self._path)
            # A version that comes in may be one that is out: not a moment between the two.
            decisions = await asyncio.to_thread(self._decisions)
        except ConfigProblems as error:
            self._seen = stamp
            self._refuse(error.problems)
            return
        self._seen = stamp
        self._follow(configs)
        if decisions is not None:
            self._rollouts.follow(decisions)

    def _decisions(self) -> Decisions | None:
        try:
            return self._state.read()[0]
        except OSError:
            return None  # `sync` tells

    def _stamp(self) -> Stamp:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _refuse(self, problems: tuple[Problem, ...]) -> None:
        self._broken = problems
        for problem in problems:
            log.error(
                "rollouts file refused",
                file=problem.file,
                key=problem.key,
                problem=problem.sentence,
                running_ones_stay=self.initialized,
            )

    def _follow(self, configs: Mapping[str, RolloutConfig]) -> None:
        before = {model: live.config for model, live in self._rollouts.live.items()}
        self._broken = ()
        self.initialized = True
        self._rollouts.apply(configs)
        for model, config in configs.items():
            if before.get(model) != config:
                variants = config.rollout.variants.values()
                weights = {one.name: f"{one.version}: {one.weight:g}" for one in variants}
                log.info("rollout", model=model, variants=weights)
        for model in before.keys() - configs.keys():
            log.info("rollout ended", model=model)

    # -- the guard and the state folder

    async def step(self) -> None:
        """Judge what came in, and sync decisions with the other processes."""
        self._rollouts.tick()
        await self.sync()

    async def sync(self) -> None:
        """Write down what was decided and cleared here, and follow what stands."""
        rollouts = self._rollouts
        async with self._syncing:
            if not (rollouts.live or rollouts.pending_records or rollouts.pending_clears):
                return
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
                if problem not in self._troubles:
                    log.error("state folder", problem=problem)
            self._troubles = done.problems

    def _sync(
        self,
        records: Mapping[DecisionKey, Decision],
        clears: frozenset[DecisionKey],
    ) -> _SyncResult:
        saved, removed, problems = {}, set(), []
        for model, version in clears:
            try:
                self._state.clear(model, version)
                removed.add((model, version))
            except OSError as error:
                problems.append(f"the state folder does not forget: {error.strerror}")
        for (model, version), decision in records.items():
            try:
                self._state.record(model, decision)
                saved[model, version] = decision
            except OSError as error:
                problems.append(f"the state folder takes no decision: {error.strerror}")
        try:
            decisions, broken = self._state.read()
        except OSError as error:
            problems.append(f"the state folder cannot be read: {error.strerror}")
            return _SyncResult(saved, frozenset(removed), None, tuple(problems))
        return _SyncResult(saved, frozenset(removed), decisions, (*problems, *broken))

    def _end_outdated(self, decisions: Decisions) -> None:
        """At the start, end what was decided about versions that left their rollout meanwhile.

        Later on only an edit ends anything: another replica may have read a newer file than this
        one did, and decided about a version that is not in this one's.
        """
        if self._followed:
            return
        self._followed = True
        if self._seen is None:
            return
        for model, versions in self._rollouts.pinned.items():
            for version, decision in decisions.get(model, {}).items():
                if version not in versions and _time_of(decision) < self._seen[0] / 1e9:
                    self._rollouts.pending_clears.add((model, version))


def _time_of(decision: Decision) -> float:
    try:
        return datetime.fromisoformat(decision.at).timestamp()
    except ValueError:
        return float("inf")


def log_event(event: RolloutEvent) -> None:
    """Tell the log what happened to a variant."""
    match event:
        case RolledBack(model, version, variants, shadow, reason, detail, ours):
            log.error(
                "rolled back",
                model=model,
                version=version,
                variants=list(variants),
                shadow_stopped=shadow,
                reason=reason,
                detail=detail,
                decided_here=ours,
            )
        case Restored(model, version, variants):
            log.info("rollback ended", model=model, version=version, variants=list(variants))
        case Dropped():
            pass  # counted
