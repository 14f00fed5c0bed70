"""Private copies of models with external data, which ONNX Runtime maps and does not read.

Whoever wrote to a mapped file would change what is served, and whoever cut it would end the process
(SIGBUS). In `weights/` of the cache folder are

    <SHA-256>        the content of a file, read-only: made once, shared by processes and versions
    open-XXXXXXXX/   what one loaded version has open: `lock`, and in `model/` links to those

Content is in use as long as it has a second link, and a folder as long as its lock is held, which
ends with the process. So nothing is deleted under anybody, and what a killed process leaves is
found. Content counts once it is whole, and is hashed again by each version that finds it.
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
"""How long content is kept that nobody has open: a restart or a rollback finds it."""

SPARE_SHARE = 20
"""One part in so many of the file system is left to others."""

LOCKING_SECONDS = 60.0
"""How long a folder may have no lock yet."""

CLEANING_SECONDS = 60.0
"""How often a folder is cleaned at most, by whichever process."""

CHUNK_BYTES = 1 << 20

FICLONE = 0x40049409
"""Linux's request to share the blocks of another file until one of the two is written to."""

_OPEN, _CLEANED = "open-", ".cleaned"


class PrivateCopy:
    """A folder of links to content that nobody writes to, until `close`.

    path: The model in it.
    """

    def __init__(self, weights: Path, name: str) -> None:
        """Make an empty one in the folder `weights`. Raises OSError."""
        weights.mkdir(mode=0o700, parents=True, exist_ok=True)  # not everybody may read models
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
        """Have what is in `source` at `location` beside the model. Raises OSError.

        digests: Learns the digests of both.
        """
        here = self.path.parent / location
        if here.exists():  # as `./location`, say
            return
        here.parent.mkdir(parents=True, exist_ok=True)
        before = stamp(source)
        digest = self._find(source, here, digests) or self._make(source, here)
        digests.learn(source, before, digest)
        digests.learn(here, stamp(here), digest)

    def close(self) -> None:
        """Remove the folder. What ONNX Runtime has mapped stays until the session is closed."""
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _find(self, source: Path, here: Path, digests: Digests) -> str:
        """Link content that was made before, and give its digest; "" where there is none."""
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
            with suppress(OSError):  # then nobody shares it
                os.link(made, self._weights / digest)
            made.rename(here)
        return digest

    def _link(self, digest: str, here: Path) -> bool:
        """Whether there was such content; what is damaged is deleted."""
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
    """Copy a model and its external data, or find that somebody has. Raises OSError.

    model: The model's file.
    external: Where its external data lies in its folder; checked before.
    cache: The cache folder.
    digests: Learns the digests of what was copied, and of the copies.
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
            with suppress(OSError):  # deleted meanwhile
                yield entry.stat(follow_symlinks=False).st_size


def clean_copies(cache: Path) -> None:
    """Delete what was left of copies that nobody uses any more. Never raises."""
    clean(cache / "weights")


def clean(weights: Path, *, unused_seconds: float = UNUSED_SECONDS) -> None:
    """Delete folders of processes that ended, and content unused for so long. Never raises."""
    now = time.time()
    with suppress(OSError):
        for folder in weights.glob(f"{_OPEN}*"):
            with suppress(OSError):
                if now - folder.stat().st_mtime > LOCKING_SECONDS and _is_abandoned(folder):
                    shutil.rmtree(folder, ignore_errors=True)
        for content in weights.glob("[0-9a-f]*"):
            with suppress(OSError):
                found = content.stat()  # whose change time is when it was last linked or unlinked
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
    """Delete what nobody has open where there is no room for `size` bytes. Raises OSError."""
    if not _has_room(weights, size):
        clean(weights, unused_seconds=0)
    if not _has_room(weights, size):
        raise OSError(ENOSPC, os.strerror(ENOSPC))


def _has_room(weights: Path, size: int) -> bool:
    total, _, free = shutil.disk_usage(weights)
    return size <= free - total // SPARE_SHARE


def read_content(source: Path, digests: Digests) -> bytes:
    """The content of a file, whose digest `digests` learns. Raises OSError."""
    before = stamp(source)
    with _open_file(source) as file:
        content = file.read(os.fstat(file.fileno()).st_size)
    digests.learn(source, before, hashlib.sha256(content).hexdigest())
    return content


def _open_file(path: Path) -> BufferedReader:
    """Open what was checked to be a file, and may have become a link or a pipe by now."""
    opened = os.open(path.resolve(), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    file = os.fdopen(opened, "rb")
    if not S_ISREG(os.fstat(opened).st_mode):
        file.close()
        raise OSError(EINVAL, "it is not a file")
    return file


def _share_blocks(source: BufferedReader, copy: BufferedRandom) -> bool:
    """Make `copy` a reflink of `source`, where the file system has those."""
    try:
        fcntl.ioctl(copy, FICLONE, source.fileno())
    except OSError:
        return False
    return True


def _copy_content(source: BufferedReader, copy: BufferedRandom, size: int) -> str:
    """Copy `size` bytes at most: what grows meanwhile has no end."""
    sha256, chunk = hashlib.sha256(), memoryview(bytearray(CHUNK_BYTES))
    while size > 0 and (count := source.readinto(chunk[:size])):
        sha256.update(chunk[:count])
        copy.write(chunk[:count])
        size -= count
    return sha256.hexdigest()
