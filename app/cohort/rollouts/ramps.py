"""The ramps of a process: they count soak time, and follow the records in the state folder."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from cohort.rollouts.events import RampMoved, RolloutObserver
from cohort.rollouts.live import LiveRollout
from cohort.rollouts.ramp import FIRST_STEP, RampKey, RampProgress, RecordedRamps

MAX_TICK_SECONDS = 5.0
"""Maximum time that one check counts: a suspended process did not serve."""

UNASKED_SECONDS = 60.0
"""Time after a request in which a variant still counts as serving."""

RampId = tuple[str, RampKey]
"""A model and one of its ramps."""


@dataclass(slots=True)
class _Run:
    key: RampKey
    progress: RampProgress = FIRST_STEP
    requests: int = 0
    idle: float = UNASKED_SECONDS  # seconds since the last request


class Ramps:
    """The ramps of all models. A step takes effect once a process has recorded it.

    So no process is ahead of the others, and no ramp moves while the state folder is lost.

    pending: Progress to record, by model and ramp.

    ready: Returns the versions of a model that can serve.
    observe: Called with a RampMoved for each step.
    """

    def __init__(self, ready: Callable[[str], Collection[int]], observe: RolloutObserver) -> None:
        self.pending: dict[RampId, RampProgress] = {}
        self._ready = ready
        self._observe = observe
        self._runs: dict[str, _Run] = {}

    def configure(self, live: LiveRollout) -> None:
        """Follow an edit: a new ramp, or one with other steps, begins at its first step."""
        model, key = live.rollout.model, live.config.rollout.ramp_key
        run = self._runs.get(model)
        if run is not None and run.key != key:
            self.end(model)
        if key and model not in self._runs:
            self._runs[model] = _Run(key)
            live.apply_step(0)

    def end(self, model: str, *, missing: bool = False) -> None:
        """End a model's ramp; if the same ramp returns later, it starts again.

        missing: True if the reason is only a missing rollouts file; default False.
        """
        run = self._runs.pop(model, None)
        if run is not None and not missing:
            self.pending[model, run.key] = run.progress.restarted()

    def restart(self, live: LiveRollout, versions: Collection[int]) -> None:
        """Return to the first step, if the ramp is of one of these versions."""
        model, ramp = live.rollout.model, live.config.rollout.ramp
        run = self._runs.get(model)
        if ramp is None or run is None:
            return
        if live.rollout.variants[ramp.variant].version in versions:
            run.progress = self.pending[model, run.key] = run.progress.restarted()
            live.apply_step(0)

    def tick(self, live: LiveRollout, seconds: float) -> None:
        """Count the time since the last check, if the variant served."""
        ramp = live.config.rollout.ramp
        run = self._runs.get(live.rollout.model)
        if ramp is None or run is None:
            return
        variant = live.rollout.variants[ramp.variant]
        run.idle = 0.0 if live.ramp_requests != run.requests else run.idle + seconds
        run.requests = live.ramp_requests
        ready = variant.version in self._ready(live.rollout.model)
        if variant.rolled_back or not ready or run.idle >= UNASKED_SECONDS:
            return
        soaked = run.progress.soaked + min(seconds, MAX_TICK_SECONDS)
        run.progress = run.progress._replace(soaked=soaked)
        if (following := ramp.after(run.progress)) is not None:
            self.pending[live.rollout.model, run.key] = following

    def follow(
        self,
        live: Mapping[str, LiveRollout],
        recorded: RecordedRamps,
        written: Collection[RampId] = (),
    ) -> None:
        """Move each ramp to its record in the state folder, and record missing progress.

        written: The ramps that this process has just recorded.
        """
        for model, run in self._runs.items():
            one, before = live[model], run.progress
            ramp = one.config.rollout.ramp
            there = recorded.get(model, {}).get(run.key)
            if there is not None and ramp is not None:
                there = ramp.believe(there)
            run.progress = max(before, there or before)
            if run.progress.is_worth_recording(there):
                self.pending.setdefault((model, run.key), run.progress)
            if run.progress[:2] == before[:2]:
                continue
            one.apply_step(run.progress.step)
            if ramp is not None and run.progress.step > before.step:
                self._observe(
                    RampMoved(
                        model,
                        one.rollout.variants[ramp.variant].version,
                        ramp.variant,
                        run.progress.step,
                        len(ramp.steps),
                        ramp.percent(run.progress.step),
                        f"{run.key}.{run.progress.run}",
                        (model, run.key) in written,
                    )
                )

    def describe(self, live: LiveRollout) -> dict[str, Any] | None:
        """Describe a model's ramp in plain values; None if it has no ramp."""
        ramp, run = live.config.rollout.ramp, self._runs.get(live.rollout.model)
        if ramp is None or run is None:
            return None
        variant = live.rollout.variants[ramp.variant]
        over = run.progress.step == len(ramp.steps)
        if variant.rolled_back:
            state = "rolled back"
        elif over:
            state = "promoted" if ramp.auto_promote else "finished"
        elif variant.version not in self._ready(live.rollout.model) or run.idle >= UNASKED_SECONDS:
            state = "not serving"
        else:
            state = "soaking"
        return {
            "variant": ramp.variant,
            "state": state,
            "step": min(run.progress.step + 1, len(ramp.steps)),
            "steps": list(ramp.steps),
            "soaked_seconds": round(run.progress.soaked, 1),
            "soak_seconds": None if over else ramp.soak[run.progress.step],
            "auto_promote": ramp.auto_promote,
        }
