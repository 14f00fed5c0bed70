"""The other workers of this host, as one of them sees them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from typing import Any

from cohort.errors import NotReady
from cohort.operating import Readiness
from cohort.workers.link import Link, WorkerAnswers

GATHER_SECONDS = 1.0
"""How long other workers may take to say how they are."""

DONE_SECONDS = 900.0
"""How long they may take to do what an operator wants: as long as a large model loads."""

LOOK_SECONDS = 2.0
"""How often it is looked meanwhile whether they still answer at all, and"""

HUNG_SECONDS = 5.0
"""how long they may take for that."""


class Siblings:
    """The other workers. Until `connect` nobody is asked.

    retiring: Whether this one is being replaced: the host goes on.

    place: Which of the workers this is, from 0.
    pid: This process.
    """

    def __init__(self, place: int, pid: int) -> None:
        self.place = place
        self.retiring = False
        self._pid = pid
        self._link: Link | None = None
        self._picture: Mapping[str, Any] = {}

    def connect(self, link: Link) -> None:
        """Reach others from now on, by this link."""
        self._link = link

    def take_picture(self, picture: Mapping[str, Any]) -> None:
        """Note what the parent tells of all workers."""
        self._picture = picture

    @property
    def judges(self) -> bool:
        """Whether this process judges rollouts for all."""
        return self._link is None or self._picture.get("judge") == self._pid

    # -- how all are

    def readiness(self, own: Readiness) -> Readiness:
        """Whether all that connections are given to are ready, where this one is as in `own`.

        One that has not loaded its first models yet is given none while another one is ready.
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
        """Whether nothing is wrong, in any of them, that only a restart mends."""
        for one in self._others:
            if own.ready and one.get("live") is False:
                return Readiness(False, f"worker {one['place']}: {one['ailment']}")
        return own

    @property
    def _others(self) -> list[Mapping[str, Any]]:
        """Those that take connections, and are not being replaced."""
        return [
            one
            for one in self._picture.get("workers", ())
            if one["pid"] != self._pid and not one["retiring"] and "ready" in one
        ]

    @property
    def _settled(self) -> bool:
        own = [one for one in self._picture.get("workers", ()) if one["pid"] == self._pid]
        return any(one.get("settled") for one in own)

    # -- what is asked of them

    async def ask(
        self,
        what: str,
        said: Mapping[str, Any] | None = None,
        *,
        to: str = "others",
    ) -> WorkerAnswers:
        """How others are: the answers of those that are not too busy to give one."""
        if self._link is None:
            return WorkerAnswers(())
        return await self._link.ask(what, said or {}, to=to, seconds=GATHER_SECONDS)

    async def have_done(self, what: str, said: Mapping[str, Any]) -> None:
        """Have all others do what this process has done, and wait until they have.

        Raises NotReady with the reason of one that could not, or that does not answer any more.
        """
        link = self._link
        if link is None:
            return
        with ExitStack() as stack:
            asking = asyncio.ensure_future(link.ask(what, said, to="others", seconds=DONE_SECONDS))
            stack.callback(asking.cancel)
            while not (await asyncio.wait({asking}, timeout=LOOK_SECONDS))[0]:
                looked = await link.ask("health", {}, to="others", seconds=HUNG_SECONDS)
                if looked.silent and not asking.done():
                    raise NotReady(
                        f"{self._name(looked.silent)} gives no answer for {HUNG_SECONDS:g} s: "
                        "it does this once it goes on, or is replaced by one that does"
                    )
            found = asking.result()
        for answer in found.answers:
            if answer.error:
                raise NotReady(f"in process {answer.pid}, another worker: {answer.error}")
        if found.silent:
            raise NotReady(f"{self._name(found.silent)} has not finished yet")

    def _name(self, silent: Collection[int]) -> str:
        """What to call processes: by their places, as far as these are known."""
        places = {one["pid"]: one["place"] for one in self._picture.get("workers", ())}
        return ", ".join(f"worker {places.get(pid, '?')} (process {pid})" for pid in silent)
