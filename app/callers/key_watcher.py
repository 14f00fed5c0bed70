"""Keeps the keys in step with the operator's file."""

from __future__ import annotations

import asyncio
from pathlib import Path

import structlog

from app.callers.caller import ADMIN
from app.callers.key_ring import KeyRing
from app.callers.keys import load_keys
from app.repository import NEVER_SEEN, ConfigProblems, Problem, log_problems, settled_stamp

log = structlog.get_logger("cohort")


class KeyWatcher:
    """Keeps a ring in step with a file. An invalid or missing file changes nothing.

    path: The file.
    ring: What is kept in step.
    has_admin_token: Whether the name of COHORT_ADMIN_TOKEN is taken.
    """

    def __init__(self, path: Path, ring: KeyRing, *, has_admin_token: bool) -> None:
        self._path = path
        self._ring = ring
        self._reserved = ADMIN if has_admin_token else ""
        self._stamp_seen = NEVER_SEEN
        self._problems: tuple[Problem, ...] = ()

    @property
    def valid(self) -> bool:
        """Whether the file could be read the last time it had changed."""
        return not self._problems

    @property
    def problems(self) -> list[str]:
        """What is wrong with the file, in sentences."""
        return [str(problem) for problem in self._problems]

    @property
    def unready(self) -> str:
        """Why no caller can be told from another yet; empty once the file has been read."""
        if self._ring.initialized:
            return ""
        return f"the file of API keys is invalid: {self._problems[0]}" if self._problems else ""

    async def check_file(self) -> None:
        """Follow the file, if it has changed and is no longer being written."""
        stamp = await settled_stamp(self._path, self._stamp_seen)
        if stamp == self._stamp_seen:
            return
        self._stamp_seen = stamp
        try:
            keys = await asyncio.to_thread(load_keys, self._path, reserved=self._reserved)
        except ConfigProblems as error:
            self._refuse(error.problems)
            return
        self._problems = ()
        self._ring.follow(keys)
        log.info("API keys read", file=self._path.name, keys=len(keys))

    def _refuse(self, problems: tuple[Problem, ...]) -> None:
        self._problems = problems
        log_problems(log, "API keys file invalid", problems, keeps_previous=self._ring.initialized)
