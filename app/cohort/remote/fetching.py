"""Fetching the files of one version: resumed after a failure, each once, and verified."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from errno import EDQUOT, ENOSPC
from pathlib import Path

from cohort.errors import LoadFailed, RemoteFailed, quoted_names
from cohort.remote.ledger import KeptFile, KeptVersion
from cohort.remote.listing import RemoteVersion
from cohort.remote.pace import Progress
from cohort.remote.store import RemoteFile, RemoteStore
from cohort.remote.web_server import FETCH_BYTES, RangesRefused
from cohort.repository import MANIFEST_FILE, read_manifest

SPARE_BYTES = 64 << 20
"""Free bytes of the file system that a fetch leaves to other programs."""


class GivenUp(Exception):
    """The files are no longer wanted."""


@dataclass(frozen=True)
class Fetcher:
    """Fetches versions into a folder of the mirror.

    store: The repository.
    parts: The folder of incomplete files, whose fetch is resumed.
    find: Returns the files of the mirror that had a SHA-256 when they were fetched.
    max_bytes: Maximum bytes of a version; default None: no limit.
    """

    store: RemoteStore
    parts: Path
    find: Callable[[str], Iterable[Path]]
    max_bytes: int | None = None

    def fetch(
        self,
        version: RemoteVersion,
        into: Path,
        progress: Progress,
        *,
        before: tuple[Path, KeptVersion] | None = None,
    ) -> KeptVersion:
        """Put the files of `version` into an empty folder, and return their records.

        progress: Counts the bytes received.
        before: The version as fetched before, whose unchanged files are reused; default None.

        Raises RemoteFailed with a sentence, and GivenUp if the version is no longer wanted.
        """
        try:
            return self._fetch(version, into, progress, before)
        except OSError as error:
            why = "no space is left" if error.errno in {ENOSPC, EDQUOT} else error.strerror or error
            raise RemoteFailed(f"{version} cannot be kept in COHORT_CACHE: {why}") from error

    def _fetch(
        self,
        version: RemoteVersion,
        into: Path,
        progress: Progress,
        before: tuple[Path, KeptVersion] | None,
    ) -> KeptVersion:
        self._check_room(version)
        kept: dict[str, KeptFile] = {}
        published: Mapping[str, str] = {}
        # The manifest first, because it has the digests of the other files.
        for path in sorted(version.files, key=lambda path: (path != MANIFEST_FILE, path)):
            file, target = version.files[path], into / path
            target.parent.mkdir(parents=True, exist_ok=True)
            sha256 = published.get(path, file.sha256)
            if (same := _unchanged(before, path, file, sha256)) is not None:
                _take(same[0], target)
                kept[path] = same[1]
            elif (digest := self._copy(sha256, target)) is not None:
                kept[path] = KeptFile(file.identity, digest, target.stat().st_size)
            else:
                kept[path] = self._download(file, target, sha256, progress)
            if path == MANIFEST_FILE:
                published = _published(into)
                if missing := published.keys() - version.files.keys():
                    raise RemoteFailed(
                        f"{version} is not complete: {MANIFEST_FILE} names "
                        f"{quoted_names(sorted(missing))}"
                    )
            self._check_size(version, sum(one.size for one in kept.values()))
        return KeptVersion(version.identity, kept)

    def _check_room(self, version: RemoteVersion) -> None:
        self._check_size(version, version.bytes_known)
        here = sum(
            part.stat().st_size for part in map(self.part, version.files.values()) if part.exists()
        )
        needed = version.bytes_known - here
        free = shutil.disk_usage(self.parts).free - SPARE_BYTES
        if needed > free:
            raise RemoteFailed(
                f"{version} cannot be kept in COHORT_CACHE: it needs {needed >> 20:,} MiB more, "
                f"{max(0, free) >> 20:,} are free"
            )

    def _check_size(self, version: RemoteVersion, size: int) -> None:
        if self.max_bytes is not None and size > self.max_bytes:
            raise RemoteFailed(
                f"{version} has {-(-size >> 20):,} MiB; at most {self.max_bytes >> 20:,} are "
                "allowed (COHORT_MAX_MODEL_MB)"
            )

    def _copy(self, sha256: str, target: Path) -> str | None:
        """Copy a local file that has this content; None if there is no such file."""
        for here in self.find(sha256) if sha256 else ():
            try:
                shutil.copyfile(here, target)
                with target.open("rb") as file:
                    if hashlib.file_digest(file, "sha256").hexdigest() == sha256:
                        return sha256
            except FileNotFoundError:
                continue
        target.unlink(missing_ok=True)
        return None

    def part(self, file: RemoteFile) -> Path:
        """Return the path of a file until it is complete; its name depends on the content."""
        name = hashlib.sha256(f"{file.path}\n{file.identity}".encode()).hexdigest()[:40]
        return self.parts / name

    def _download(
        self, file: RemoteFile, target: Path, sha256: str, progress: Progress
    ) -> KeptFile:
        part = self.part(file)
        try:
            digest, size = self._append(file, part, progress)
        except RangesRefused:
            part.unlink()
            digest, size = self._append(file, part, progress)
        except OSError as error:
            if error.errno in {ENOSPC, EDQUOT}:
                part.unlink(missing_ok=True)
            raise
        if sha256 and digest != sha256:
            part.unlink()
            raise RemoteFailed(
                f"{file.path} is not the file that was published: its SHA-256 starts with "
                f"{digest[:12]}, not with {sha256[:12]}"
            )
        part.rename(target)
        return KeptFile(file.identity, digest, size)

    def _append(self, file: RemoteFile, part: Path, progress: Progress) -> tuple[str, int]:
        """Fetch the missing bytes of a file; return its SHA-256 and size."""
        with part.open("a+b") as out:
            out.seek(0)
            sha256 = hashlib.sha256()
            while piece := out.read(FETCH_BYTES):
                sha256.update(piece)
                progress.read(len(piece))
            size = out.tell()
            if size != file.size and sha256.hexdigest() != file.sha256:
                for piece in self.store.stream(file, size):
                    if progress.given_up.is_set():
                        raise GivenUp
                    out.write(piece)
                    sha256.update(piece)
                    size += len(piece)
                    progress.came(len(piece))
                    if size > (self.max_bytes or size):
                        raise RemoteFailed(f"{file.path} is larger than COHORT_MAX_MODEL_MB allows")
            out.flush()
            os.fsync(out.fileno())
        return sha256.hexdigest(), size


def _published(folder: Path) -> Mapping[str, str]:
    """Return the digests of a manifest; empty if it is invalid, which loading then reports."""
    try:
        manifest = read_manifest(folder)
    except LoadFailed:
        return {}
    return {} if manifest is None else manifest.files


def _unchanged(
    before: tuple[Path, KeptVersion] | None, path: str, file: RemoteFile, sha256: str
) -> tuple[Path, KeptFile] | None:
    if before is None:
        return None
    folder, version = before
    kept = version.files.get(path)
    same = kept is not None and kept.identity == file.identity and sha256 in {"", kept.sha256}
    return (folder / path, kept) if kept is not None and same else None


def _take(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copyfile(source, target)
