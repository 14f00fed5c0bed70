"""Keeps keys in step with the operator's files."""

from __future__ import annotations

from collections.abc import Callable, Sized
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

import structlog

from cohort.repository import FollowedFiles

log = structlog.get_logger("cohort")

Keys = TypeVar("Keys", bound=Sized)


class KeyWatcher(Generic[Keys]):
    """Follows a file of keys. An invalid or missing file changes nothing.

    path: The file.
    title: The kind of its contents, for logs and health.
    load: Reads it, in a thread. Raises ConfigProblems.
    follow: Applies its contents.
    """

    def __init__(
        self,
        path: Path,
        title: str,
        *,
        load: Callable[[Path], Keys],
        follow: Callable[[Keys], None],
    ) -> None:
        self._path = path
        self._title = title
        self._follow = follow
        self._initialized = False
        self._file = FollowedFiles(
            [path], partial(load, path), log=log, invalid=f"{title} file invalid"
        )

    @property
    def valid(self) -> bool:
        """True if the file was valid when it was last read."""
        return self._file.valid

    @property
    def problems(self) -> list[str]:
        """The problems of the file, in sentences."""
        return [str(problem) for problem in self._file.problems]

    @property
    def unready(self) -> str:
        """Why callers cannot be identified yet; empty once the file has been read."""
        if self._initialized or self.valid:
            return ""
        return f"the file of {self._title} is invalid: {self._file.problems[0]}"

    async def check_file(self) -> None:
        """Follow the file, if it has changed and is no longer being written."""
        keys = await self._file.check(keeps_previous=self._initialized)
        if keys is None:
            return
        self._initialized = True
        self._follow(keys)
        event = f"{self._title} read"
        log.info(event, file=self._path.name, keys=len(keys))
