"""Files of an operator's that are read again once they have changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from cohort.repository.stamps import NEVER_SEEN, file_stamp, settled_stamp
from cohort.repository.yaml_files import ConfigProblems, Problem, log_problems

Content = TypeVar("Content")


class FollowedFiles(Generic[Content]):
    """Reads files when one has changed. Invalid or missing ones change nothing.

    problems: What is wrong with them, going by the last time that one had changed.

    paths: The files.
    load: Reads them all, in a thread. Raises ConfigProblems.
    log: Where problems are logged.
    invalid: The event of that.
    seen: Whether they are read as they are now by whoever follows them; default False.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        load: Callable[[], Content],
        *,
        log: Any,
        invalid: str,
        seen: bool = False,
    ) -> None:
        self.problems: tuple[Problem, ...] = ()
        self._paths = paths
        self._stamps = [file_stamp(path) if seen else NEVER_SEEN for path in paths]
        self._load = load
        self._log = log
        self._invalid = invalid

    @property
    def valid(self) -> bool:
        """Whether the files could be read the last time one had changed."""
        return not self.problems

    async def check(self, *, keeps_previous: bool = True) -> Content | None:
        """What they hold, if one has changed and none is being written; else None.

        keeps_previous: Whether the log is to say that what was read before stays; default True.
        """
        seen = zip(self._paths, self._stamps, strict=True)
        stamps = list(await asyncio.gather(*(settled_stamp(path, stamp) for path, stamp in seen)))
        if stamps == self._stamps:
            return None
        self._stamps = stamps
        try:
            content = await asyncio.to_thread(self._load)
        except ConfigProblems as error:
            self.problems = error.problems
            log_problems(self._log, self._invalid, error.problems, keeps_previous=keeps_previous)
            return None
        self.problems = ()
        return content
