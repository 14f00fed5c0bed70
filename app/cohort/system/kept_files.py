"""Small files of the cache folder, each for a readable key, so a difference can be reported."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4


def path_for(folder: Path, form: int, key: Mapping[str, str]) -> Path:
    """Return the file for this key and form; its name has the model's digest and a hash of both.

    folder: The folder of the files.
    form: The version of their format, raised whenever the format changes.
    key: All values that determine the content; "model" is the model's digest.
    """
    known = json.dumps([form, dict(key)], sort_keys=True)
    rest = hashlib.sha256(known.encode()).hexdigest()[:24]
    return folder / f"{key['model'][:32]}-{rest}.json"


def read_small(path: Path, most: int) -> str:
    """Read a file of up to `most` bytes.

    Raises OSError, and ValueError if it is not a regular file, is larger, or is not UTF-8.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # a pipe: no wait
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is not a file")
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"it is larger than {most} bytes")
    return content.decode()


@contextmanager
def written_beside(path: Path, text: str) -> Iterator[Path]:
    """Write a temporary file next to `path`, sync it, and yield it as a replacement for `path`.

    If the file is still there at the end, it is deleted. Raises OSError.
    """
    temporary = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with temporary.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> None:
    """Replace a file atomically, so no reader gets a partial file. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
