"""The rollout watcher: reads the rollouts file and the state folder, and runs the guard."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, get_args

import structlog

from cohort.repository import (
    NEVER_SEEN,
    ConfigProblems,
    Problem,
    log_problems,
    read_text,
    settled_stamp,
)
from cohort.rollouts.config import RolloutConfig, find_misnamed, load_rollouts
from cohort.rollouts.decision_store import (
    NO_RAMPS,
    Decision,
    DecisionKey,
    Decisions,
    DecisionStore,
    Recorded,
)
from cohort.rollouts.events import RampMoved, Restored, RolledBack, RolloutEvent
from cohort.rollouts.judgement import Reason
from cohort.rollouts.ramp import RampProgress
from cohort.rollouts.ramps import RampId
from cohort.rollouts.rollouts import OPERATOR, Rollouts
from cohort.rollouts.state_folder import REPLACED, StateFolder

log = structlog.get_logger("cohort")


SYNC_SECONDS = 2.0
"""Time for the state folder to answer, before this counts as a problem."""

FOLDER_GONE = "the state folder is gone: decisions hold only in this process until it is restored"
FOLDER_LATE = f"the state folder has not answered for {SYNC_SECONDS:g} seconds"


class _SyncResult(NamedTuple):
    """The outcome of one pass over the state folder; `recorded` is None if it is unreadable."""

    saved: Mapping[DecisionKey, Decision]
    ended: Mapping[DecisionKey, Decision]
    moved: Mapping[RampId, bool]  # True if this process moved it
    recorded: Recorded | None
    problems: tuple[str, ...]


class RolloutWatcher:
    """Applies the rollouts file and the state folder to the rollouts of this process.

    An invalid file changes nothing.

    initialized: True once a valid file was read, or found missing. Until then no model is loaded
        that the file may name: the versions that may receive traffic are not known.

    path: The rollouts file; it may be missing.
    state: The state folder that processes share; it may be missing.
    rollouts: The rollouts of this process.
    """

    def __init__(self, path: Path, state: Path, rollouts: Rollouts) -> None:
        self.initialized = False
        self._path = path
        self._store = DecisionStore(state, by=f"replica {socket.gethostname()}")
        self._folder = StateFolder(state)
        self._rollouts = rollouts
        self._stamp_seen = NEVER_SEEN
        self._file_problems: tuple[Problem, ...] = ()
        self._invalid_text: str | None = None  # the first file's text; None: unreadable
        self._state_problems: tuple[str, ...] = ()
        self._followed = False
        self._read = False  # True once the decisions were read
        self._syncing: asyncio.Task[None] | None = None

    @property
    def valid(self) -> bool:
        """True if the rollouts file is valid or missing."""
        return not self._file_problems

    @property
    def state_problems(self) -> tuple[str, ...]:
        """The problems of the state folder, in sentences."""
        return self._state_problems

    def problems(self, *, settled: bool) -> list[str]:
        """Return all problems, in sentences; before models are `settled`, no version is missing."""
        missing = self._rollouts.problems() if settled else []
        return [*map(str, self._file_problems), *self._state_problems, *missing]

    def loading_reason(self) -> str:
        """Return why the first models are not loaded yet."""
        return self._why_invalid() or "loading models"

    @property
    def knows_models(self) -> bool:
        """True once the models that the file may name are known."""
        return self.initialized or self._invalid_text is not None

    def held(self, models: Iterable[str]) -> dict[str, str]:
        """Return the models that an invalid file may name, with why they are not loaded."""
        if self.initialized:
            return {}
        text, why = self._invalid_text, self._why_invalid()
        return {model: why for model in models if text is None or _may_name(model, text)}

    def _why_invalid(self) -> str:
        if self.initialized or not self._file_problems:
            return ""
        return f"the rollouts file is invalid: {self._file_problems[0]}"

    # -- the operator's file

    async def check_file(self) -> None:
        """Follow the file, if it has changed and is no longer being written."""
        stamp = await settled_stamp(self._path, self._stamp_seen)
        if stamp == self._stamp_seen:
            if stamp is None and self._file_problems:
                self._file_problems = await asyncio.to_thread(find_misnamed, self._path)
            return
        try:
            configs = await asyncio.to_thread(load_rollouts, self._path)
        except ConfigProblems as error:
            self._stamp_seen = stamp
            if not self.initialized:
                self._invalid_text = await asyncio.to_thread(_text_of, self._path)
            self._refuse(error.problems)
            return
        await self.sync()  # a version that enters may be rolled back already
        self._stamp_seen = stamp
        self._follow(configs)
        if stamp is None and (misnamed := await asyncio.to_thread(find_misnamed, self._path)):
            self._refuse(misnamed)

    def _refuse(self, problems: tuple[Problem, ...]) -> None:
        self._file_problems = problems
        log_problems(log, "rollouts file invalid", problems, keeps_previous=self.initialized)

    def _follow(self, configs: Mapping[str, RolloutConfig]) -> None:
        before = {model: live.config for model, live in self._rollouts.live.items()}
        self._file_problems = ()
        self.initialized = True
        self._rollouts.apply(configs, missing=self._stamp_seen is None)
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

    async def step(self, *, decide: bool = True) -> None:
        """Judge new outcomes, if this process judges, and exchange decisions with others."""
        self._rollouts.judge(decide=decide)
        await self.sync()

    async def sync(self) -> None:
        """Write the decisions and clears of this process, and follow those of others.

        If the folder takes longer than SYNC_SECONDS, waiting continues in the background.
        """
        while self._syncing is not None and not self._syncing.done():
            before, _ = await asyncio.wait({self._syncing}, timeout=SYNC_SECONDS)
            if not before:
                self._lose([FOLDER_LATE])
                return
        self._syncing = asyncio.create_task(self._exchange())
        done, _ = await asyncio.wait({self._syncing}, timeout=SYNC_SECONDS)
        for task in done:
            task.result()
        if not done:
            self._lose([FOLDER_LATE])

    async def _exchange(self) -> None:
        rollouts = self._rollouts
        ramps = dict(rollouts.ramps.pending)
        lives = rollouts.live.values()
        known = {decision.digest for live in lives for decision in live.decisions.values()}
        done = await asyncio.to_thread(
            self._sync,
            dict(rollouts.pending_records),
            dict(rollouts.pending_clears),
            ramps,
            known,
            needed=bool(rollouts.pinned),
        )
        for key, decision in done.saved.items():
            if rollouts.pending_records.get(key) == decision:
                del rollouts.pending_records[key]
        for ramp in done.moved:
            if rollouts.ramps.pending.get(ramp) == ramps[ramp]:
                del rollouts.ramps.pending[ramp]
        if done.recorded is None:
            self._lose(done.problems)
            return
        self._read = True
        self._end_outdated(done.recorded.decisions)
        rollouts.follow(done.recorded, [ramp for ramp, moved in done.moved.items() if moved])
        for key, decision in done.ended.items():
            if rollouts.pending_clears.get(key) == decision:
                del rollouts.pending_clears[key]
        self._report(done.problems)

    def _lose(self, problems: Sequence[str]) -> None:
        """Keep the known decisions; if none were ever read, stop traffic to all candidates."""
        self._report(problems)
        if not self._read:
            self._rollouts.hold(f"the decisions are not known: {problems[-1]}")

    def _report(self, problems: Sequence[str]) -> None:
        for problem in problems:
            if problem not in self._state_problems:
                log.error("state folder problem", problem=problem)
        if self._state_problems and not problems:
            log.info("state folder well again")
        self._state_problems = tuple(problems)

    def _sync(
        self,
        records: Mapping[DecisionKey, Decision],
        clears: Mapping[DecisionKey, Decision],
        ramps: Mapping[RampId, RampProgress],
        known: Collection[str],
        *,
        needed: bool,
    ) -> _SyncResult:
        saved, ended, moved = {}, {}, {}
        problems = []
        unusable = ""
        try:
            if needed and (problem := self._folder.check()):
                problems.append(problem)
        except FileNotFoundError:
            problems.append(FOLDER_GONE)
            return _SyncResult({}, {}, {}, None, tuple(problems))
        except OSError as error:
            unusable = f"the state folder cannot be written: {error.strerror}"
        for (model, version), decision in clears.items():
            try:
                self._store.clear(model, version, decision)
                ended[model, version] = decision
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
        for (model, key), progress in ramps.items():
            try:
                moved[model, key] = self._store.move_ramp(model, key, progress)
            except OSError as error:
                problems.append(
                    f"the step of a ramp cannot be written to the state folder: {error.strerror}"
                )
        try:
            recorded = self._store.read(known)
        except OSError as error:
            problems.append(f"the state folder cannot be read: {error.strerror}")
            return _SyncResult(saved, ended, moved, None, tuple(problems))
        if unusable:
            problems.insert(0, unusable)
        if REPLACED in problems:  # its ramps may belong to another fleet
            recorded = recorded._replace(ramps=NO_RAMPS)
        return _SyncResult(saved, ended, moved, recorded, (*problems, *recorded.problems))

    def _end_outdated(self, decisions: Decisions) -> None:
        """End decisions about versions that left their rollout before the first sync.

        After that only an edit ends one. Another replica may have read a newer file, and decided
        about a version that this one does not know.
        """
        if self._followed or not self._rollouts.live:
            return
        self._followed = True
        if self._stamp_seen is None:
            return
        for model, versions in self._rollouts.pinned.items():
            for version, decision in decisions.get(model, {}).items():
                if version not in versions and _decided_at(decision) < self._stamp_seen[0] / 1e9:
                    self._rollouts.pending_clears[model, version] = decision


def _text_of(path: Path) -> str | None:
    """Return the text of a file; None if it is unreadable, or may contain escaped names."""
    try:
        text = read_text(path, path.name)
    except ConfigProblems:
        return None
    return None if text is None or "\\" in text else text


def _may_name(model: str, text: str) -> bool:
    """Return True if a text contains the name of a model as a whole word."""
    return re.search(rf"(?<![\w-]){re.escape(model)}(?![\w-])", text) is not None


def _decided_at(decision: Decision) -> float:
    try:
        return datetime.fromisoformat(decision.at).timestamp()
    except ValueError:
        return float("inf")


def log_event(event: RolloutEvent) -> None:
    """Log an event of a variant: a warning if no operator caused it, with instructions."""
    match event:
        case RolledBack(model, version, variants, shadow, reason, detail, decided_here):
            write = log.info if reason == OPERATOR else log.warning
            write(
                "rolled back",
                model=model,
                version=version,
                variants=list(variants),
                shadow_stopped=shadow,
                reason=reason,
                detail=detail,
                decided_here=decided_here,
                **({"to_do": _to_do(model, variants)} if reason in get_args(Reason) else {}),
            )
        case Restored(model, version, variants, by):
            who = {"cleared_by": by} if by else {}
            log.info("rollback ended", model=model, version=version, variants=list(variants), **who)
        case RampMoved(model, version, variant, step, steps, percent, _, decided_here):
            log.info(
                "ramp finished" if step == steps else "ramp took a step",
                model=model,
                version=version,
                variant=variant,
                percent=percent,
                step=min(step + 1, steps),
                steps=steps,
                decided_here=decided_here,
            )


def _to_do(model: str, variants: Sequence[str]) -> str:
    clear = " ".join(["cohort rollout clear", model, *variants[:1]])
    return (
        "not urgent, the baseline serves. Publish a corrected version under a new number; "
        f"or, if this version was not the cause: {clear}"
    )
