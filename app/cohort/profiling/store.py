"""Profiles in files, kept between starts and shared by processes.

A file name has two digests: of the model, and of everything else that the numbers depend on. The
file also describes these dependencies, so that `cohort profile` can name the differences. Files
are replaced whole. A truncated, foreign or invalid file counts as absent. While a process measures,
it holds a lock that the system releases if it dies. A process that waits too long for the lock
measures without it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import structlog

from cohort.batching import BatchPolicy
from cohort.profiling.kept import KeptProfile, read_kept
from cohort.system.kept_files import path_for, read_small, write_whole

log = structlog.get_logger("cohort.profiling")

FORMAT = 7
"""Version of the file format; increment it when the content or the measurement changes."""

MAX_PROFILE_BYTES = 1 << 20
"""Larger files were not written by this module."""

LOCK_SECONDS = 2.0  # seconds to wait for another process that measures the same
LOCKS = 16  # files; two models that share one may wait for each other

_complained: set[Path] = set()


class Store:
    """The kept profiles under one cache folder. Never raises if the folder cannot be used."""

    def __init__(self, cache: Path, *, lock_seconds: float = LOCK_SECONDS) -> None:
        self._folder, self._lock_seconds = cache / "profiles", lock_seconds

    def read(self, key: Mapping[str, str], policy: BatchPolicy) -> KeptProfile | None:
        """Return the profile kept for this key, or None; an unusable file is logged.

        policy: The batch policy of the model's config.
        """
        path = self._path(key)
        content = self._load(path)
        if content is None:
            return None
        fields = {name: value for name, value in content.items() if name not in ("format", "key")}
        try:
            if content.get("key") != dict(key):
                raise ValueError("its key does not match")
            return read_kept(fields, policy)
        except ValueError as error:
            _log_unusable(path, str(error))
            return None

    def write(self, key: Mapping[str, str], kept: KeptProfile) -> None:
        """Keep `kept`, and replace the former profile of this key."""
        text = json.dumps({"format": FORMAT, "key": dict(key), **asdict(kept)}, indent=1)
        try:
            write_whole(self._path(key), text)
        except OSError as error:
            self._complain(error)

    def differences(self, key: Mapping[str, str]) -> list[str]:
        """Return the parts of `key` in which the newest other profile of the model differs."""
        newest: tuple[float, list[str]] = (0.0, [])
        for path in self._folder.glob(f"{key['model'][:32]}-*.json"):
            with contextlib.suppress(OSError):
                content, age = self._load(path), path.stat().st_mtime
                if content is not None and isinstance(content.get("key"), dict):
                    there = content["key"]
                    other = [part for part in key if there.get(part) != key[part]]
                    if other and age >= newest[0]:
                        newest = (age, other)
        return newest[1]

    @contextlib.contextmanager
    def locked(self, key: Mapping[str, str]) -> Iterator[None]:
        """Hold the lock for `key`; continue without it if it is not available in time."""
        number = int(hashlib.sha256(self._path(key).name.encode()).hexdigest(), 16) % LOCKS
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(self._folder / f".lock-{number}", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            self._complain(error)
            yield
            return
        try:
            self._wait_for(lock)
            yield
        finally:
            os.close(lock)  # which releases it

    def _wait_for(self, lock: int) -> None:
        until = time.monotonic() + self._lock_seconds
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= until:
                    log.warning("profile lock is held for long; measuring without it")
                    return
                time.sleep(0.02)
            except OSError as error:  # a file system without locks
                self._complain(error)
                return
            else:
                return

    def _path(self, key: Mapping[str, str]) -> Path:
        return path_for(self._folder, FORMAT, key)

    def _load(self, path: Path) -> dict[str, Any] | None:
        try:
            content = json.loads(read_small(path, MAX_PROFILE_BYTES))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, RecursionError) as error:
            _log_unusable(path, str(error))
            return None
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            _log_unusable(path, f"it is not of format {FORMAT}")
            return None
        return content

    def _complain(self, error: OSError) -> None:
        """Log, once per folder and process, that profiles are not kept."""
        if self._folder not in _complained:
            _complained.add(self._folder)
            log.warning(
                "profiles cannot be kept, so each start measures again; set COHORT_CACHE to a "
                "folder that can be written",
                folder=str(self._folder),
                error=error.strerror or str(error),
            )


def _log_unusable(path: Path, why: str) -> None:
    log.warning("kept profile is not usable and is measured again", file=path.name, error=why)
