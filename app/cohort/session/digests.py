"""Digests of files that are read once while a model loads."""

from __future__ import annotations

import hashlib
from errno import EINVAL
from functools import cache
from pathlib import Path
from stat import S_ISREG
from time import perf_counter

Stamp = tuple[int, ...]


def stamp(path: Path) -> Stamp:
    """Return a value that changes when the file at `path` does; empty if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file in hex (0.7 ms per MB). Raises OSError, also for a pipe."""
    if not S_ISREG(path.stat().st_mode):
        raise OSError(EINVAL, "it is not a file")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Digests:
    """The SHA-256 of files, in hex. A file is read again only after its stamp has changed.

    Use it for one load only, because some file systems have timestamps too coarse for every change.
    """

    def __init__(self) -> None:
        self._known: dict[Path, tuple[Stamp, str]] = {}

    def of(self, path: Path) -> str:
        """Return the digest of the file at `path`. Raises OSError."""
        before = stamp(path)  # the next call detects a change during the read
        known = self._known.get(path)
        if known is None or known[0] != before or not before:
            known = self._known[path] = before, hash_file(path)
        return known[1]

    def learn(self, path: Path, seen: Stamp, digest: str) -> None:
        """Store the digest that the file at `path` had when its stamp was `seen`."""
        self._known[path] = seen, digest


def hashing_seconds(size: int) -> float:
    """Estimate the seconds that hashing `size` bytes takes, for a file in memory."""
    return size * _seconds_per_byte()


@cache
def _seconds_per_byte() -> float:
    sample = bytes(1 << 20)
    start = perf_counter()
    hashlib.sha256(sample)
    return (perf_counter() - start) / len(sample)
