"""The files of one version: what they are now, and whether they can be a model."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from errno import EFBIG, ELOOP
from hashlib import blake2b
from itertools import islice
from operator import itemgetter
from pathlib import Path

MAX_FILES = 10_000
"""In one version; a link to a whole disk must not be walked."""

NO_MODEL = "has no model.onnx"


def why_no_model(path: Path) -> str:
    """Why the file at `path` cannot be a model; "" where it may be one. Raises OSError."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return "its model.onnx is a broken link" if path.is_symlink() else NO_MODEL
    if not stat.S_ISREG(found.st_mode):
        return "its model.onnx is not a file"
    if not os.access(path, os.R_OK):
        return "its model.onnx cannot be read: Permission denied"
    return "" if found.st_size else "its model.onnx is empty"


def stamp_files(folder: Path) -> tuple[str, float]:
    """Give a digest of names, times and sizes in `folder`, and when something last changed.

    The change time counts besides the modification time, which copies often carry along.
    """
    digest = blake2b(digest_size=12)
    changed = 0.0
    files = list(islice(_walk(folder), MAX_FILES + 1))
    if len(files) > MAX_FILES:
        raise OSError(EFBIG, f"it has more than {MAX_FILES} files")
    for name, found in sorted(files, key=itemgetter(0)):
        changed = max(changed, found.st_mtime, found.st_ctime)
        if not stat.S_ISDIR(found.st_mode):
            row = (name, found.st_mtime_ns, found.st_size, found.st_ino)
            digest.update(repr(row).encode())
    return digest.hexdigest(), changed


def _walk(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Every file and folder inside, links followed, each folder once."""
    seen: set[tuple[int, int]] = set()
    waiting = [("", folder)]
    while waiting:
        prefix, path = waiting.pop()
        found = path.stat()
        if (found.st_dev, found.st_ino) in seen:
            continue
        seen.add((found.st_dev, found.st_ino))
        yield prefix, found
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                inner, name = Path(entry.path), f"{prefix}/{entry.name}"
                try:
                    found = inner.stat()  # entry.stat() has no inode on Windows
                except (FileNotFoundError, PermissionError):
                    continue  # gone meanwhile, or a link to nothing or to what is not ours
                except OSError as error:
                    if error.errno == ELOOP:
                        continue
                    raise
                if stat.S_ISDIR(found.st_mode):
                    waiting.append((name, inner))
                else:
                    yield name, found
