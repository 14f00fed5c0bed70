"""One folder: what is in it, and why it cannot be looked into."""

from __future__ import annotations

import os
from pathlib import Path

from cohort.errors import quoted

IGNORED_FOLDERS = frozenset({"__pycache__", "lost+found"})


def look_into(folder: Path) -> tuple[list[str], list[str]]:
    """The names of all in `folder` that may be a model or version, links followed, and of files.

    Each in order. A link to nothing or in a circle is kept: looking into it fails with the reason.
    """
    found: list[str] = []
    files: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(".") or entry.name in IGNORED_FOLDERS:
                continue
            try:
                is_ours = entry.is_dir() or not Path(entry.path).exists()
            except OSError:
                is_ours = True
            (found if is_ours else files).append(entry.name)
    return sorted(found), sorted(files)


def why_unreadable(error: OSError | ValueError, folder: Path) -> str:
    """Say why a folder cannot be looked into, of an error that says so."""
    if isinstance(error, FileNotFoundError):
        return "is a broken link" if folder.is_symlink() else "folder not found"
    if isinstance(error, NotADirectoryError):
        return "is a file, not a folder"
    return f"cannot be read: {getattr(error, 'strerror', None) or quoted(str(error))}"
