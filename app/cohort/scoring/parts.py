"""Results that are on disk already, so that a run that was stopped can continue."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from cohort.errors import CohortError

PART = re.compile(r"(\d+)-(\d+)-(\d+)\.part")
"""The number of a slice, its rows, and those of them that failed."""

_IDENTITY = "job"

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class AlreadyRunning(CohortError):
    """Another process writes the same file."""


class Parts:
    """The results of slices, one file each, until all are there.

    folder: Where they are.
    identity: A text that changes with all that the results depend on: others are thrown away.
    """

    def __init__(self, folder: Path, identity: str) -> None:
        self._folder = folder
        self._identity = identity
        self.done: dict[int, tuple[int, int]] = {}
        """The rows and the failed rows of each slice that is done, by its number."""

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Find the results of an earlier run. Raises AlreadyRunning, or OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / _IDENTITY).open("a+", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise AlreadyRunning(
                    f"another cohort score writes this file; {self._folder} is in use"
                ) from None
            file.seek(0)
            same = file.read() == self._identity
            for path in self._folder.iterdir():
                found = PART.fullmatch(path.name)
                if found and same:
                    number, rows, failed = map(int, found.groups())
                    self.done[number] = rows, failed
                elif path.name != _IDENTITY:
                    path.unlink()
            if not same:
                file.truncate(0)
                file.write(self._identity)
                file.flush()
            yield

    @contextmanager
    def part(self, number: int) -> Iterator[tuple[Path, Callable[[int, int], None]]]:
        """Yield where to write a slice's results, and a function that sets its rows and failures.

        The results count once the block ends.
        """
        path = self._folder / f"{number}.new"
        counted = [0, 0]

        def count(rows: int, failed: int) -> None:
            counted[0] += rows
            counted[1] += failed

        with named(path):
            yield path, count
            if counted[0]:
                to_disk(path)
        if counted[0]:
            path.rename(self._path(number, *counted))
        else:
            path.unlink(missing_ok=True)
        self.done[number] = counted[0], counted[1]

    def _path(self, number: int, rows: int, failed: int) -> Path:
        return self._folder / f"{number}-{rows}-{failed}.part"

    @property
    def paths(self) -> Sequence[Path]:
        """The files of all slices that have rows, in order."""
        done = sorted(self.done.items())
        return [self._path(number, *counts) for number, counts in done if counts[0]]

    def join(self, whole: Path, join: Callable[[Sequence[Path], Path], None]) -> None:
        """Write all results into one file, which appears at once and complete."""
        made = self._folder / "whole.new"
        with named(made):
            join(self.paths, made)
            to_disk(made)
        whole.parent.mkdir(parents=True, exist_ok=True)
        if whole.parent.stat().st_dev == made.stat().st_dev:
            made.replace(whole)
            return
        beside = whole.with_name(f".{whole.name}.{os.getpid()}")  # another file system
        try:
            with named(beside):
                shutil.copyfile(made, beside)
            beside.replace(whole)
        finally:
            beside.unlink(missing_ok=True)

    def remove(self) -> None:
        """Delete all results."""
        with suppress(OSError):
            shutil.rmtree(self._folder)


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Add the path to an error about a lack of room, which comes without one."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM and not error.filename:
            error.filename = str(path)
        raise


def to_disk(path: Path) -> None:
    """Wait until a file's content is on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def identity_of(facts: Mapping[str, object]) -> str:
    """Return the identity of a job."""
    return "\n".join(f"{name}: {value}" for name, value in sorted(facts.items()))
