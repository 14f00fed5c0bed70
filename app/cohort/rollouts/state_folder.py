"""Detection of a lost or replaced state folder."""

from __future__ import annotations

import os
import re
from pathlib import Path
from uuid import uuid4

from cohort.system.kept_files import read_small, written_beside

MARK = "rollouts/.id"
"""The file that identifies this folder: 32 hexadecimal digits."""

MARK_CONTENT = re.compile(r"[0-9a-f]{32}\n?")

EMPTIED = "the state folder was emptied; this process writes its decisions to it again"
REPLACED = (
    "the state folder is not the same as before (replaced, emptied, or a mount is missing). "
    "This process has written its decisions to it; restore the former folder, or restart to "
    "accept this one"
)


class StateFolder:
    """Reports if the folder is lost: gone, emptied, or replaced.

    The folder gets a mark when it is first used, which identifies it from then on. A missing folder
    is not created again, because that would hide the loss. An emptied folder gets its former mark
    again. Another folder without a mark gets a new one, so that every process sees that it is
    another.

    path: The folder; it may be missing when the process starts.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mark = ""
        self._known: tuple[int, int] | None = None  # the device and inode of the marked folder

    def check(self) -> str:
        """Check the folder and mark it; return the problem in a sentence, or "".

        Raises OSError if it is gone, or cannot be read or marked.
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
        """Return the folder's mark; "" if it is missing or incomplete."""
        try:
            mark = read_small(self._path / MARK, 64)
        except (FileNotFoundError, ValueError):
            return ""
        return mark.strip() if MARK_CONTENT.fullmatch(mark) else ""

    def _write_mark(self, mark: str) -> str:
        """Write a mark, unless another process was first; return the folder's mark."""
        path = self._path / MARK
        path.parent.mkdir(exist_ok=True)
        with written_beside(path, f"{mark}\n") as temporary:
            try:
                os.link(temporary, path)  # if processes start together, one wins
            except OSError:  # an incomplete mark exists, or links are not supported
                if not self._read_mark():
                    temporary.replace(path)
        return self._read_mark()
