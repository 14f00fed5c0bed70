"""Listing one folder, and the reasons why it cannot be read."""

from __future__ import annotations

import os
from pathlib import Path

from cohort.errors import quoted

IGNORED_FOLDERS = frozenset({"__pycache__", "lost+found"})


def look_into(folder: Path) -> tuple[list[str], list[str]]:
    """Return the names in `folder` that may be a model or version, and the names of files.

    Both lists are sorted, and links are followed. A broken or circular link is among the first,
    because reading it then fails with the reason.
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
    """Return the reason why a folder cannot be read, from the error of reading it."""
    if isinstance(error, FileNotFoundError):
        return "is a broken link" if folder.is_symlink() else "folder not found"
    if isinstance(error, NotADirectoryError):
        return "is a file, not a folder"
    return f"cannot be read: {getattr(error, 'strerror', None) or quoted(str(error))}"
