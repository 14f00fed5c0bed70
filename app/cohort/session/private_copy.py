"""Private copies of models with external data, which ONNX Runtime maps instead of reading.

A write to a mapped file would change the served model, and truncation would kill the process
(SIGBUS). The folder `weights/` of the cache folder has these entries:

    <SHA-256>        the read-only content of a file, shared by processes and versions.

    open-XXXXXXXX/   the open files of one loaded version: `lock`, and links to content in `model/`.

Content is in use while it has a second link. A folder is in use while its lock is held; the lock
ends with the process. So no content in use is deleted, and the leftovers of a killed process are
found. Content gets its name only after it is complete, and each version that finds it hashes it
again.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from errno import EINVAL, ENOSPC
from io import BufferedRandom, BufferedReader
from pathlib import Path
from stat import S_ISREG

from cohort.session.digests import Digests, hash_file, stamp

UNUSED_SECONDS = 3600.0
"""Time that unused content is kept, for a restart or a rollback."""

SPARE_SHARE = 20
"""The share of the file system left free for other uses: 1 / SPARE_SHARE."""

LOCKING_SECONDS = 60.0
"""Maximum time between the creation of a folder and its lock."""

CLEANING_SECONDS = 60.0
"""Minimum time between two cleanups of a folder, by any process."""

CHUNK_BYTES = 1 << 20

FICLONE = 0x40049409
"""The Linux ioctl that shares the blocks of another file until one of the two is written to."""

_OPEN, _CLEANED = "open-", ".cleaned"


class PrivateCopy:
    """A folder of links to read-only content, until `close`.

    path: The model in the folder.
    """

    def __init__(self, weights: Path, name: str) -> None:
        """Create an empty copy in the folder `weights`. Raises OSError."""
        weights.mkdir(mode=0o700, parents=True, exist_ok=True)  # other users may not read models
        self._weights = weights
        self._folder = Path(tempfile.mkdtemp(dir=weights, prefix=_OPEN))
        self.path = self._folder / "model" / name
        self._lock = -1
        try:
            self._lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            self.close()
            raise

    def add(self, source: Path, location: str, digests: Digests) -> None:
        """Add the content of `source` at `location`, relative to the model's folder.

        digests: Stores the digests of the source and of the copy.

        Raises OSError.
        """
        here = self.path.parent / location
        if here.exists():  # for example as `./location`
            return
        here.parent.mkdir(parents=True, exist_ok=True)
        before = stamp(source)
        digest = self._find(source, here, digests) or self._make(source, here)
        digests.learn(source, before, digest)
        digests.learn(here, stamp(here), digest)

    def close(self) -> None:
        """Remove the folder. Files that ONNX Runtime has mapped stay until the session closes."""
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _find(self, source: Path, here: Path, digests: Digests) -> str:
        """Link existing content, and return its digest; "" if no such content exists."""
        size = source.stat().st_size
        if all(size != kept for kept in _sizes(self._weights)):
            return ""
        digest = digests.of(source)
        return digest if self._link(digest, here) else ""

    def _make(self, source: Path, here: Path) -> str:
        made = self._folder / "made"
        with _open_file(source) as file, made.open("x+b") as copy:
            made.chmod(0o444)
            if _share_blocks(file, copy):
                digest = hashlib.file_digest(copy, "sha256").hexdigest()
            else:
                size = os.fstat(file.fileno()).st_size
                _make_room(self._weights, size)
                digest = _copy_content(file, copy, size)
        if self._link(digest, here):  # another process was faster
            made.unlink()
        else:
            with suppress(OSError):  # then it is not shared
                os.link(made, self._weights / digest)
            made.rename(here)
        return digest

    def _link(self, digest: str, here: Path) -> bool:
        """Link the cached copy with this digest; return False if it is missing or damaged.

        A damaged copy is deleted.
        """
        kept = self._weights / digest
        try:
            os.link(kept, here)
        except OSError:
            return False
        if hash_file(here) == digest:
            return True
        here.unlink()
        kept.unlink(missing_ok=True)
        return False


def copy_privately(
    model: Path, external: Sequence[str], cache: Path, digests: Digests
) -> PrivateCopy:
    """Copy a model and its external data, or link existing copies. Raises OSError.

    model: The model's file.
    external: The paths of its external data in its folder, already checked.
    cache: The cache folder.
    digests: Stores the digests of the originals and of the copies.
    """
    weights = cache / "weights"
    copy = PrivateCopy(weights, model.name)
    try:
        _clean_now_and_then(weights)
        for location in (model.name, *external):
            copy.add(model.parent / location, location, digests)
    except BaseException:
        copy.close()
        raise
    return copy


def _sizes(weights: Path) -> Iterator[int]:
    with os.scandir(weights) as entries:
        for entry in entries:
            with suppress(OSError):  # deleted since the scan
                yield entry.stat(follow_symlinks=False).st_size


def clean_copies(cache: Path) -> None:
    """Delete the leftovers of copies that are no longer in use. Never raises."""
    clean(cache / "weights")


def clean(weights: Path, *, unused_seconds: float = UNUSED_SECONDS) -> None:
    """Delete folders of ended processes, and content unused for `unused_seconds`. Never raises."""
    now = time.time()
    with suppress(OSError):
        for folder in weights.glob(f"{_OPEN}*"):
            with suppress(OSError):
                if now - folder.stat().st_mtime > LOCKING_SECONDS and _is_abandoned(folder):
                    shutil.rmtree(folder, ignore_errors=True)
        for content in weights.glob("[0-9a-f]*"):
            with suppress(OSError):
                found = content.stat()  # st_ctime is the time of the last link or unlink
                if found.st_nlink == 1 and now - found.st_ctime >= unused_seconds:
                    content.unlink()


def _is_abandoned(folder: Path) -> bool:
    try:
        lock = os.open(folder / "lock", os.O_RDWR)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True


def _clean_now_and_then(weights: Path) -> None:
    cleaned = weights / _CLEANED
    with suppress(FileNotFoundError):
        if 0 <= time.time() - cleaned.stat().st_mtime < CLEANING_SECONDS:
            return
    cleaned.touch()
    clean(weights)


def _make_room(weights: Path, size: int) -> None:
    """Delete unused content if `size` bytes do not fit. Raises OSError if they still do not."""
    if not _has_room(weights, size):
        clean(weights, unused_seconds=0)
    if not _has_room(weights, size):
        raise OSError(ENOSPC, os.strerror(ENOSPC))


def _has_room(weights: Path, size: int) -> bool:
    total, _, free = shutil.disk_usage(weights)
    return size <= free - total // SPARE_SHARE


def read_content(source: Path, digests: Digests) -> bytes:
    """Return the content of a file, and store its digest in `digests`. Raises OSError."""
    before = stamp(source)
    with _open_file(source) as file:
        content = file.read(os.fstat(file.fileno()).st_size)
    digests.learn(source, before, hashlib.sha256(content).hexdigest())
    return content


def _open_file(path: Path) -> BufferedReader:
    """Open a file that was checked before, but may have become a link or a pipe since then."""
    opened = os.open(path.resolve(), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    file = os.fdopen(opened, "rb")
    if not S_ISREG(os.fstat(opened).st_mode):
        file.close()
        raise OSError(EINVAL, "it is not a file")
    return file


def _share_blocks(source: BufferedReader, copy: BufferedRandom) -> bool:
    """Make `copy` a reflink of `source`; return False if the file system does not support it."""
    try:
        fcntl.ioctl(copy, FICLONE, source.fileno())
    except OSError:
        return False
    return True


def _copy_content(source: BufferedReader, copy: BufferedRandom, size: int) -> str:
    """Copy at most `size` bytes, and return their SHA-256: a growing file may have no end."""
    sha256, chunk = hashlib.sha256(), memoryview(bytearray(CHUNK_BYTES))
    while size > 0 and (count := source.readinto(chunk[:size])):
        sha256.update(chunk[:count])
        copy.write(chunk[:count])
        size -= count
    return sha256.hexdigest()
