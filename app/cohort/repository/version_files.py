"""The files of one version: their current stamp, and a check that they can be a model."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from errno import EFBIG, ELOOP
from hashlib import blake2b
from pathlib import Path

MAX_FILES = 10_000
"""Limit of files in one version, so that a link to a whole disk is not walked."""

MODEL_FILE = "model.onnx"
"""The model file of a version that is an ONNX model."""

PIPELINE_FILE = "pipeline.yaml"
"""The file of a pipeline, a graph of other models, in a version's or model's folder."""

GENAI_FILE = "genai_config.json"
"""The description of a language model, next to its decoder."""

VERSION_FILES = (GENAI_FILE, MODEL_FILE, PIPELINE_FILE)
"""The possible model files of a version; the first one found determines the kind."""

CARD_FILE = "MODEL.md"
"""The card of a published version."""

NO_MODEL = f"has no {MODEL_FILE}"


def why_no_model(path: Path) -> str:
    """Return why the file at `path` cannot be a model; "" if it may be one. Raises OSError."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return f"its {path.name} is a broken link" if path.is_symlink() else NO_MODEL
    if not stat.S_ISREG(found.st_mode):
        if (path / "saved_model.pb").exists():
            return f"its {path.name} is a TensorFlow SavedModel; convert it with tf2onnx"
        return f"its {path.name} is not a file"
    if not os.access(path, os.R_OK):
        return f"its {path.name} cannot be read: Permission denied"
    return "" if found.st_size else f"its {path.name} is empty"


def stamp_files(folder: str) -> tuple[str, float]:
    """Return a digest of the names, times, sizes and inodes in `folder`, and the last change.

    The change time counts as well as the modification time, because copies often preserve the
    latter. Raises OSError if a file or folder cannot be read, or if there are more than MAX_FILES.
    """
    rows: list[tuple[str, int, int, int, int]] = []
    seen: set[tuple[int, int]] = set()
    changed = 0.0
    waiting = [("", folder)]
    while waiting:
        prefix, path = waiting.pop()
        itself = os.stat(path)  # noqa: PTH116 - runs for each version at each scan
        if (itself.st_dev, itself.st_ino) in seen:  # a link to a folder around it
            continue
        seen.add((itself.st_dev, itself.st_ino))
        changed = max(changed, itself.st_mtime, itself.st_ctime)
        with os.scandir(path) as entries:
            for entry in entries:
                name = entry.name
                if name[0] == "." or (found := _stat(entry.path)) is None:
                    continue
                if stat.S_ISDIR(found.st_mode):
                    waiting.append((f"{prefix}{name}/", entry.path))
                    continue
                changed = max(changed, found.st_mtime, found.st_ctime)
                times = found.st_mtime_ns, found.st_ctime_ns
                rows.append((prefix + name, *times, found.st_size, found.st_ino))
                if len(rows) + len(waiting) > MAX_FILES:
                    raise OSError(EFBIG, f"it has more than {MAX_FILES} files")
    rows.sort()
    return blake2b(repr(rows).encode(), digest_size=12).hexdigest(), changed


def stamp_modules(folder: Path, files: Iterable[str]) -> tuple[str, float]:
    """Return a digest of the Python modules among the files of a folder, and their last change.

    Tests do not count. Never raises: a module that cannot be read is ignored.
    """
    names = [name for name in files if name.endswith(".py") and not name.startswith("test_")]
    found = [(name, one) for name in names if (one := _stat(f"{folder}/{name}")) is not None]
    rows = [
        (name, one.st_mtime_ns, one.st_ctime_ns, one.st_size, one.st_ino) for name, one in found
    ]
    changed = max((one.st_ctime for _, one in found), default=0.0)
    return blake2b(repr(rows).encode(), digest_size=12).hexdigest(), changed


def _stat(path: str) -> os.stat_result | None:
    """Return the status of `path`, links followed; None if gone, broken or not permitted."""
    try:
        return os.stat(path)  # noqa: PTH116 - and an entry's own has no inode on Windows
    except (FileNotFoundError, PermissionError):
        return None
    except OSError as error:
        if error.errno == ELOOP:
            return None
        raise
