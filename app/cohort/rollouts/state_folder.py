"""Whether the state folder is still the one that it was."""

from __future__ import annotations

import os
import re
from pathlib import Path
from uuid import uuid4

from cohort.system.kept_files import read_small, written_beside

MARK = "rollouts/.id"
"""The file that tells this folder from any other: 32 hexadecimal digits."""

MARK_CONTENT = re.compile(r"[0-9a-f]{32}\n?")

EMPTIED = "the state folder was emptied; what is known here is written to it again"
REPLACED = (
    "the state folder is another one than before (replaced, emptied, or a mount is missing): what "
    "is known here was written to it; put the former one back, or restart to accept this one"
)


class StateFolder:
    """Tells when the folder is lost: gone, emptied, or another one in its place.

    It is given a mark when it is first used, and is known by that from then on. One that is gone is
    not made again, because that would hide the loss. One that has no mark gets the former one's
    where it was emptied; else a new one, by which every process sees that it is another.

    path: The folder; it may be missing when the process starts.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mark = ""
        self._known: tuple[int, int] | None = None  # the device and inode of the marked folder

    def look(self) -> str:
        """Look at the folder, and mark it; return what is wrong in a sentence, or "".

        Raises OSError where it is gone, or cannot be looked at or marked.
        """
        if not self._mark:
            self._path.mkdir(parents=True, exist_ok=True)
        here = self._inode()
        mark = self._read_mark()
        if not self._mark:
            self._mark = mark or self._write_mark(uuid4().hex)
            self._known = here
            return ""
        if mark == self._mark:
            self._known = here
            return ""
        if not mark:
            emptied = here == self._known
            mark = self._write_mark(self._mark if emptied else uuid4().hex)
            if mark == self._mark:
                return EMPTIED
        return REPLACED

    def _inode(self) -> tuple[int, int]:
        found = self._path.stat()
        return found.st_dev, found.st_ino

    def _read_mark(self) -> str:
        """The folder's mark; "" where it has none, or one that was torn."""
        try:
            mark = read_small(self._path / MARK, 64)
        except (FileNotFoundError, ValueError):
            return ""
        return mark.strip() if MARK_CONTENT.fullmatch(mark) else ""

    def _write_mark(self, mark: str) -> str:
        """Give the folder a mark, unless another process was first; return the one it has."""
        path = self._path / MARK
        path.parent.mkdir(exist_ok=True)
        with written_beside(path, f"{mark}\n") as temporary:
            try:
                os.link(temporary, path)  # of processes that start together, one is the first
            except OSError:  # a torn mark is there, or the file system has no links
                if not self._read_mark():
                    temporary.replace(path)
        return self._read_mark()
