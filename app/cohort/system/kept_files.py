"""Small files of the cache folder, each for a key in words, so that what differs can be named."""

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
    """The file for exactly this key in a form: named after the model's digest and all of it.

    folder: Where such files are.
    form: The number of their form, raised whenever their content changes.
    key: What the content depends on; "model" is the model's digest.
    """
    known = json.dumps([form, dict(key)], sort_keys=True)
    rest = hashlib.sha256(known.encode()).hexdigest()[:24]
    return folder / f"{key['model'][:32]}-{rest}.json"


def read_small(path: Path, most: int) -> str:
    """Read a file of up to `most` bytes.

    Raises OSError, and ValueError where it is none of ours: no file, larger, or not UTF-8.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # no pipe holds it
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is not a file")
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"it is larger than {most} bytes")
    return content.decode()


@contextmanager
def written_beside(path: Path, text: str) -> Iterator[Path]:
    """Write a new file beside `path`, through to the disk, and give it, to take the place of that.

    What is left of it is deleted at the end. Raises OSError.
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
    """Write a file in place of what is there, so that nobody reads half of it. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
