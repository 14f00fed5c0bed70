"""The operator's files that are read again after a change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from cohort.repository.stamps import NEVER_SEEN, file_stamp, settled_stamp
from cohort.repository.yaml_files import ConfigProblems, Problem, log_problems

Content = TypeVar("Content")


class FollowedFiles(Generic[Content]):
    """Files that are read again when one has changed. Invalid or missing files change nothing.

    problems: The problems found at the last change.

    paths: The files.
    load: Reads all files, in a thread. Raises ConfigProblems.
    log: The logger of problems.
    invalid: The log event of a problem.
    seen: True if the caller has read the files as they are now; default False.
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
        """True if the files could be read at the last change."""
        return not self.problems

    async def check(self, *, keeps_previous: bool = True) -> Content | None:
        """Return the content of the files if one has changed; otherwise, or if invalid, None.

        Waits until no file is being written.

        keeps_previous: Log that the previous content stays in use; default True.
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
