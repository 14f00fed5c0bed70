"""One judge of rollouts for all workers of a host: what the others have counted, brought to it."""

from __future__ import annotations

import json
from dataclasses import asdict

from cohort.rollouts import Rollouts
from cohort.rollouts.rollouts import UNKNOWN
from cohort.rollouts.watcher import RolloutWatcher
from cohort.workers.given_evidence import read_given, take_evidence
from cohort.workers.siblings import Siblings


class Judging:
    """Judges, in the one worker that does, and has all others follow.

    siblings: The other workers.
    rollouts: The rollouts of this one.
    watcher: Exchanges decisions with the state folder.
    """

    def __init__(self, siblings: Siblings, rollouts: Rollouts, watcher: RolloutWatcher) -> None:
        self._siblings, self._rollouts, self._watcher = siblings, rollouts, watcher

    async def step(self) -> None:
        """Judge by what all workers have counted, if this one judges."""
        judges = self._siblings.judges
        if judges:
            await self._bring_evidence()
        before = self._decisions()
        await self._watcher.step(decide=judges)
        if judges and self._decisions() != before:
            await self._bring_evidence()  # so that all follow at once

    async def _bring_evidence(self) -> None:
        """Count what others have counted; they learn what is decided.

        Also where the state folder cannot tell them.
        """
        live = self._rollouts.live
        if not live:
            return
        found = await self._siblings.ask("evidence", {"decisions": self._decisions()})
        for answer in found.good:
            take_evidence(live, read_given(json.loads(answer.body)))

    def _decisions(self) -> dict[str, list[dict[str, object]]]:
        return {
            model: [asdict(one) for one in live.decisions.values() if one.reason != UNKNOWN]
            for model, live in self._rollouts.live.items()
        }
