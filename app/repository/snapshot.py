"""What is on disk: `models/<name>/<version>/model.onnx`, as plain data.

A version counts once it is complete. Nobody tells the server when a copy is over, so files count
once they have not changed for `QUIET_SECONDS`: by their own times, or because they are what they
were that long ago (a file server's clock may be ahead of ours). Until then the version is left for
the next scan, or stays as it was found before. The first scan waits out that time itself if it
must, so that a server started right after a copy has its models; where nothing is fresh, it does
not wait. A copy that stalls for longer fails to open, and is tried again when its stamp changes.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from errno import EFBIG
from hashlib import blake2b
from itertools import islice
from operator import itemgetter
from pathlib import Path

from app.errors import MODEL_NAME, available, quoted
from app.repository.model_config import CONFIG_FILE, ModelConfig, load_model_config
from app.repository.yaml_files import ConfigProblems, Problem

QUIET_SECONDS = 1.0
"""How long nothing may have changed, in seconds, for a version to be complete."""

MAX_FILES = 10_000
"""In one version; a link to a whole disk must not be walked."""

VERSION_NUMBER = re.compile(r"[1-9][0-9]{0,17}")
IGNORED_FOLDERS = frozenset({"__pycache__", "lost+found"})


@dataclass(frozen=True, slots=True)
class Found:
    """A complete version: its `model.onnx`, its folder, and what its files are.

    `stamp` changes whenever a file of the version is replaced, added or removed.
    """

    path: Path
    folder: Path
    stamp: str


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A model with at least one version that is complete.

    `config` is the last that could be read: None where it never could. `problem` says what is wrong
    with the file as it is now.
    """

    name: str
    versions: Mapping[int, Found]
    config: ModelConfig | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Fresh:
    """A version's files as they were first seen, at `since` on the monotonic clock."""

    stamp: str
    since: float


@dataclass(frozen=True, slots=True)
class _Config:
    """A config as it was read, so that it is read again only when its file changes."""

    stamp: tuple[int, ...]
    config: ModelConfig | None
    problems: tuple[Problem, ...]


@dataclass(frozen=True)
class Snapshot:
    """What one scan saw. `settling` holds the versions left for the next scan."""

    models: Mapping[str, FoundModel] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    settling: Mapping[tuple[str, int], Fresh] = field(default_factory=dict, compare=False)
    configs: Mapping[str, _Config] = field(default_factory=dict, compare=False, repr=False)


def scan(
    models: Path, previous: Snapshot | None = None, *, quiet: float = QUIET_SECONDS
) -> Snapshot:
    """Look at the models folder. Never raises: what is wrong is among the snapshot's problems.

    models: the folder, holding `<name>/<version>/model.onnx`.
    previous: the last snapshot; None (default) at the first look.
    quiet: seconds for which nothing may have changed in a version; 0 takes everything as it stands.
    """
    if previous is not None:
        return _Scan(models, previous, quiet).snapshot()
    first = _Scan(models, Snapshot(), quiet).snapshot()
    if not first.settling:
        return first
    time.sleep(quiet)
    return _Scan(models, first, quiet).snapshot()


class _Scan:
    """One look, collecting what it sees."""

    def __init__(self, models: Path, previous: Snapshot, quiet: float) -> None:
        self._folder = models
        self._previous = previous
        self._quiet = quiet
        self._now = time.monotonic()
        self._wall = time.time()
        self._problems: list[Problem] = []
        self._settling: dict[tuple[str, int], Fresh] = {}
        self._configs: dict[str, _Config] = {}

    def snapshot(self) -> Snapshot:
        models: dict[str, FoundModel] = {}
        try:
            folders = _folders(self._folder)
        except (OSError, ValueError) as error:
            reason = _reason(error, self._folder)
            self._say(str(self._folder), f"{reason}; put models/<name>/1/model.onnx there")
            folders = []
        for folder in folders:
            if not MODEL_NAME.fullmatch(folder.name):
                self._say(
                    ascii(folder.name)[1:-1],
                    "is not a model name: use at most 128 letters, digits, '.', '_' and '-', "
                    "beginning with a letter or digit",
                )
            elif (model := self._model(folder)) is not None:
                models[folder.name] = model
        return Snapshot(models, tuple(self._problems), self._settling, self._configs)

    def _model(self, folder: Path) -> FoundModel | None:
        name = folder.name
        try:
            inside = _folders(folder)
        except OSError as error:
            self._say(name, _reason(error, folder))
            return None
        config = self._config(folder)
        self._problems += config.problems
        versions: dict[int, Found] = {}
        for version in inside:
            if not VERSION_NUMBER.fullmatch(version.name):
                self._say(f"{name}/{ascii(version.name)[1:-1]}", _bad_number(version.name))
            elif (found := self._version(name, version)) is not None:
                versions[int(version.name)] = found
        versions = dict(sorted(versions.items()))
        if not inside:
            move = f"; move model.onnx to {name}/1/" if (folder / "model.onnx").is_file() else ""
            self._say(name, f"has no version{move or f', such as {name}/1/model.onnx'}")
        self._compare_wanted(name, config.config, versions)
        if not versions:
            return None
        problem = "; ".join(str(problem) for problem in config.problems)
        return FoundModel(name, versions, config.config, problem)

    def _compare_wanted(
        self, name: str, config: ModelConfig | None, versions: Mapping[int, Found]
    ) -> None:
        for number in config.versions.only if config else ():
            if number not in versions and (name, number) not in self._settling:
                sentence = f"version {number} not found{available(versions)}"
                self._problems.append(Problem(f"{name}/{CONFIG_FILE}", "versions", sentence))

    def _config(self, folder: Path) -> _Config:
        before = self._previous.configs.get(folder.name)
        stamp = _file_stamp(folder / CONFIG_FILE)
        if before is None or not stamp or before.stamp != stamp or self._is_fresh(stamp):
            try:
                before = _Config(stamp, load_model_config(folder), ())
            except ConfigProblems as error:
                last = before.config if before else None
                before = _Config(stamp, last, error.problems)
        self._configs[folder.name] = before
        return before

    def _is_fresh(self, stamp: tuple[int, ...]) -> bool:
        """A file that changed just now may change again within the clock's resolution."""
        return bool(stamp) and self._wall - max(stamp[:2]) / 1e9 < QUIET_SECONDS

    def _version(self, name: str, folder: Path) -> Found | None:
        number = int(folder.name)
        model = self._previous.models.get(name)
        before = model.versions.get(number) if model else None
        label = f"{name}/{folder.name}"
        try:
            stamp, changed = _stamp(folder)
            complete, problem = _look_at_model(folder / "model.onnx")
        except OSError as error:
            self._say(label, _reason(error, folder))
            return None
        if before is not None and before.stamp == stamp:
            return before
        fresh = self._previous.settling.get((name, number))
        if fresh is None or fresh.stamp != stamp:
            fresh = Fresh(stamp, self._now)
        if self._wall - changed < self._quiet and self._now - fresh.since < self._quiet:
            self._settling[name, number] = fresh
            return before
        if not complete:
            self._say(label, problem)
            return None
        return Found(folder / "model.onnx", folder, stamp)

    def _say(self, file: str, sentence: str) -> None:
        self._problems.append(Problem(file, "", sentence))


def _bad_number(name: str) -> str:
    if re.fullmatch("0+[1-9][0-9]*", name):
        return f"a version must not have leading zeros; rename it to {name.lstrip('0')}"
    if name == "0":
        return "a version must be >= 1"
    return "a version's folder must be named by its number, such as 1"


def _folders(folder: Path) -> list[Path]:
    """Everything in `folder` that may be a model or version, links followed, in order of names.

    A link to nothing or in a circle is kept: looking into it fails with the reason.
    """
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(".") or entry.name in IGNORED_FOLDERS:
                continue
            try:
                is_ours = entry.is_dir() or not Path(entry.path).exists()
            except OSError:
                is_ours = True
            if is_ours:
                found.append(folder / entry.name)
    return sorted(found)


def _look_at_model(path: Path) -> tuple[bool, str]:
    try:
        found = path.stat()
    except FileNotFoundError:
        if path.is_symlink():
            return False, "its model.onnx is a broken link"
        return False, "has no model.onnx"
    if not stat.S_ISREG(found.st_mode):
        return False, "its model.onnx is not a file"
    if not os.access(path, os.R_OK):
        return False, "its model.onnx cannot be read: Permission denied"
    return found.st_size > 0, "its model.onnx is empty"


def _stamp(folder: Path) -> tuple[str, float]:
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
                except OSError:
                    continue  # gone meanwhile, or a link to nothing
                if stat.S_ISDIR(found.st_mode):
                    waiting.append((name, inner))
                else:
                    yield name, found


def _file_stamp(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino


def _reason(error: OSError | ValueError, folder: Path) -> str:
    if isinstance(error, FileNotFoundError):
        return "is a broken link" if folder.is_symlink() else "folder not found"
    if isinstance(error, NotADirectoryError):
        return "is a file, not a folder"
    return f"cannot be read: {getattr(error, 'strerror', None) or quoted(str(error))}"
