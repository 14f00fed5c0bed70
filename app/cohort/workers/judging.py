"""Judging of rollouts by one worker of a host, with the counts of all."""

from __future__ import annotations

import json
from dataclasses import asdict

from cohort.rollouts import Rollouts
from cohort.rollouts.rollouts import UNKNOWN
from cohort.rollouts.watcher import RolloutWatcher
from cohort.workers.given_evidence import read_given, take_evidence
from cohort.workers.siblings import Siblings


class Judging:
    """Judges rollouts if this worker is the judge, and sends the decisions to all others.

    siblings: The other workers.
    rollouts: The rollouts of this worker.
    watcher: Exchanges decisions with the state folder.
    """

    def __init__(self, siblings: Siblings, rollouts: Rollouts, watcher: RolloutWatcher) -> None:
        self._siblings, self._rollouts, self._watcher = siblings, rollouts, watcher

    async def step(self) -> None:
        """Judge by the counts of all workers, if this worker is the judge."""
        judges = self._siblings.judges
        if judges:
            await self._bring_evidence()
        before = self._decisions()
        await self._watcher.step(decide=judges)
        if judges and self._decisions() != before:
            await self._bring_evidence()  # so that all workers follow at once

    async def _bring_evidence(self) -> None:
        """Fetch the other workers' counts, and send them the decisions.

        The decisions reach them even if the state folder does not work.
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
