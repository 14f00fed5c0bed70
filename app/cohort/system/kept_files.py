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


def read_content(path: Path, most: int) -> bytes:
    """Read a file of up to `most` bytes.

    Raises OSError, and ValueError if it is not a regular file, or is larger.
    """
    opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe: no wait
    try:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            raise ValueError("it is not a file")
        with os.fdopen(opened, "rb", closefd=False) as file:
            content = file.read(most + 1)
    finally:
        os.close(opened)
    if len(content) > most:
        raise ValueError(f"it is larger than {most} bytes")
    return content


def read_small(path: Path, most: int) -> str:
    """Read a text as `read_content` does. Raises ValueError also if it is not UTF-8."""
    return read_content(path, most).decode()


def why_unreadable(error: OSError | ValueError) -> str:
    """Return why one of these functions failed, without the path."""
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return f"cannot be read: {reason or 'I/O error'}"


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
