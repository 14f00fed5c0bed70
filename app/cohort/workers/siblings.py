"""The other workers of this host, as seen by one worker."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from typing import Any

from cohort.errors import NotReady
from cohort.operating import Readiness
from cohort.workers.link import Link, WorkerAnswers

GATHER_SECONDS = 1.0
"""Time for other workers to report their state."""

DONE_SECONDS = 900.0
"""Time for other workers to do an operator's action: as long as a large model loads."""

CHECK_SECONDS = 2.0
"""Interval of the checks that other workers still answer during such an action."""

HUNG_SECONDS = 5.0
"""Time for other workers to answer such a check."""


class Siblings:
    """The other workers. Before `connect` no worker is asked.

    retiring: True if this worker is being replaced, while the host continues.

    place: The number of this worker, from 0.
    pid: This process.
    """

    def __init__(self, place: int, pid: int) -> None:
        self.place = place
        self.retiring = False
        self._pid = pid
        self._link: Link | None = None
        self._picture: Mapping[str, Any] = {}

    def connect(self, link: Link) -> None:
        """Use this link to reach the other workers."""
        self._link = link

    def take_picture(self, picture: Mapping[str, Any]) -> None:
        """Store the parent's view of all workers."""
        self._picture = picture

    @property
    def judges(self) -> bool:
        """True if this process judges rollouts for all."""
        return self._link is None or self._picture.get("judge") == self._pid

    # -- the state of all workers

    def readiness(self, own: Readiness) -> Readiness:
        """Return whether all workers that receive connections are ready; `own` is this worker's.

        A worker that has not loaded its first models receives none while another one is ready.
        """
        others = [one for one in self._others if one.get("settled")]
        counts = not (self.retiring and others) and (self._settled or not others)
        if counts and not own.ready:
            return own
        for one in others:
            if not one["ready"]:
                return Readiness(False, f"worker {one['place']}: {one['reason']}")
        return Readiness(True)

    def liveness(self, own: Readiness) -> Readiness:
        """Return live unless a fault in any worker requires a restart."""
        for one in self._others:
            if own.ready and one.get("live") is False:
                return Readiness(False, f"worker {one['place']}: {one['live_reason']}")
        return own

    @property
    def _others(self) -> list[Mapping[str, Any]]:
        """The other workers that take connections and are not being replaced."""
        return [
            one
            for one in self._picture.get("workers", ())
            if one["pid"] != self._pid and not one["retiring"] and "ready" in one
        ]

    @property
    def _settled(self) -> bool:
        own = [one for one in self._picture.get("workers", ()) if one["pid"] == self._pid]
        return any(one.get("settled") for one in own)

    # -- questions to the others

    async def ask(
        self,
        what: str,
        content: Mapping[str, Any] | None = None,
        *,
        to: str = "others",
    ) -> WorkerAnswers:
        """Ask other workers; return the answers that arrive in time."""
        if self._link is None:
            return WorkerAnswers(())
        return await self._link.ask(what, content or {}, to=to, seconds=GATHER_SECONDS)

    async def have_done(self, what: str, content: Mapping[str, Any]) -> None:
        """Make all others do what this process has done, and wait until they have.

        Raises NotReady with the reason of a worker that failed or no longer answers.
        """
        link = self._link
        if link is None:
            return
        with ExitStack() as stack:
            asking = asyncio.ensure_future(
                link.ask(what, content, to="others", seconds=DONE_SECONDS)
            )
            stack.callback(asking.cancel)
            while not (await asyncio.wait({asking}, timeout=CHECK_SECONDS))[0]:
                health = await link.ask("health", {}, to="others", seconds=HUNG_SECONDS)
                if health.silent and not asking.done():
                    raise NotReady(
                        f"{self._name(health.silent)} does not answer for {HUNG_SECONDS:g} s; the "
                        "change takes effect there once it answers or is replaced"
                    )
            found = asking.result()
        for answer in found.answers:
            if answer.error:
                raise NotReady(f"worker process {answer.pid}: {answer.error}")
        if found.silent:
            raise NotReady(f"{self._name(found.silent)} has not finished yet")

    def _name(self, silent: Collection[int]) -> str:
        """Return the names of processes: their places, if known."""
        places = {one["pid"]: one["place"] for one in self._picture.get("workers", ())}
        return ", ".join(f"worker {places.get(pid, '?')} (process {pid})" for pid in silent)
