"""Snapshots of the models folder, `models/<name>/<version>/model.onnx`, as plain data.

A version counts once it is complete. The server cannot see when a copy ends, so it waits until the
files have not changed for `QUIET_SECONDS`. Either their own times show that, or two scans that far
apart saw the same files (a file server's clock may be ahead of ours). Until then the version is
left for the next scan, or stays as it was found before. If files are fresh, the first scan waits
that time itself, so that a server started right after a copy has its models. A copy that stalls
for longer fails to open, and is tried again when its stamp changes.

An unreadable version is not a removed one. A version stays as it was found before while its folder
cannot be read, or its files cannot be served. A missing version is removed after `QUIET_SECONDS`.
If no model is left, that takes `EMPTY_SECONDS`. It never happens if the folder is now on another
file system, because then a volume was unmounted.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from cohort.errors import MODEL_NAME, available
from cohort.repository.folders import look_into, why_unreadable
from cohort.repository.layouts import (
    FIRST_VERSION,
    REPOSITORY,
    Layout,
    is_model_file,
    real_folder,
    why_not_one,
)
from cohort.repository.misplaced import (
    bad_number,
    config_elsewhere,
    model_in_version,
    model_without_version,
    models_beside,
    not_pulled,
)
from cohort.repository.model_config import CONFIG_FILE, ModelConfig, load_model_config
from cohort.repository.version_files import (
    MODEL_FILE,
    NO_MODEL,
    PIPELINE_FILE,
    stamp_files,
    stamp_modules,
    why_no_model,
)
from cohort.repository.yaml_files import ConfigProblems, Problem
from cohort.session import Signature, read_signature

QUIET_SECONDS = 1.0
"""Seconds without a change after which a version is complete."""

EMPTY_SECONDS = 10.0
"""Seconds without any model in a readable folder after which all models are removed."""

MAX_READS = 3
"""Maximum reads per scan of a folder behind a link whose target keeps changing."""

EMPTY_FOLDER = "has no model; put one at <name>/1/model.onnx in it"
"""The message for a readable models folder without models."""

VERSION_NUMBER = re.compile(r"[1-9][0-9]{0,17}")


@dataclass(frozen=True, slots=True)
class Found:
    """A complete version: its model file, its folder, and the stamp of its files.

    `stamp` changes whenever a file of the version is replaced, added or removed.
    """

    path: Path
    folder: Path
    stamp: str


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A model that has, or had, at least one complete version, and its folder.

    `config` is the last readable config; None if it could never be read. `problem` describes the
    current file's problems. `code` changes with the Python modules next to the config, if the
    config names a transform. `signatures` are those of the versions that the policy may choose
    from. They are empty if only one is available, or if `allow_signature_change` is set.
    """

    name: str
    folder: Path
    versions: Mapping[int, Found]
    config: ModelConfig | None
    problem: str = ""
    code: str = ""
    signatures: Signatures = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Fresh:
    """A version's files as first seen, at `since` on the monotonic clock.

    `stamp` is GONE if the files are missing since then.
    """

    stamp: str
    since: float


Signatures = Mapping[int, Signature | None]
"""Signatures by version number; None if a signature is unknown."""

FileTimes = tuple[int, ...]

GONE = ""
"""The stamp of no files."""


@dataclass(frozen=True, slots=True)
class _Config:
    """A config with its file's times, so that it is read again only when the file changes."""

    stamp: FileTimes | None
    config: ModelConfig | None
    problems: tuple[Problem, ...]


@dataclass(frozen=True)
class Snapshot:
    """The result of one scan. `settling` holds the versions left for the next scan.

    `configs` (by model) and `signatures` (by version stamp) are kept to read each file only once.
    `device` is the file system of the models folder; None before the first successful scan.
    """

    models: Mapping[str, FoundModel] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    settling: Mapping[tuple[str, int], Fresh] = field(default_factory=dict, compare=False)
    configs: Mapping[str, _Config] = field(default_factory=dict, compare=False, repr=False)
    signatures: Mapping[str, Signature | None] = field(
        default_factory=dict, compare=False, repr=False
    )
    device: int | None = field(default=None, compare=False)


def scan(
    models: Path,
    previous: Snapshot | None = None,
    *,
    quiet: float = QUIET_SECONDS,
    kinds: Sequence[str] = (MODEL_FILE,),
    layout: Layout = REPOSITORY,
) -> Snapshot:
    """Read the models folder. Never raises; the snapshot contains the problems.

    models: The folder, with `<name>/<version>/model.onnx`.
    previous: The last snapshot; default None: this is the first scan.
    quiet: Seconds without a change after which a version is complete; 0 accepts it at once.
    kinds: The possible model files of a version; the first one found determines the kind.
    layout: The layouts that the folder may have; default: only that of a repository.
    """
    if previous is not None:
        return _scan(models, previous, quiet, kinds, layout)
    first = _scan(models, Snapshot(), quiet, kinds, layout)
    if not first.settling:
        return first
    time.sleep(quiet)
    return _scan(models, first, quiet, kinds, layout)


def _scan(
    models: Path, previous: Snapshot, quiet: float, kinds: Sequence[str], layout: Layout
) -> Snapshot:
    """Read one tree; repeat it, at most MAX_READS times, if a link changed its target."""
    tree = os.path.realpath(models)
    for _ in range(MAX_READS):
        seen = _Scan(models, previous, quiet, kinds, layout).snapshot()
        before, tree = tree, os.path.realpath(models)
        if tree == before:
            break
    return seen


class _Scan:
    """One pass over the models folder, which collects models and problems."""

    def __init__(
        self, models: Path, previous: Snapshot, quiet: float, kinds: Sequence[str], layout: Layout
    ) -> None:
        self._layout = layout
        self._folder = models
        self._previous = previous
        self._quiet = quiet
        self._kinds = kinds
        self._now = time.monotonic()
        self._wall = time.time()
        self._problems: list[Problem] = []
        self._settling: dict[tuple[str, int], Fresh] = {}
        self._configs: dict[str, _Config] = {}
        self._signatures: dict[str, Signature | None] = {}

    def snapshot(self) -> Snapshot:
        before = self._previous
        try:
            device = self._folder.stat().st_dev
            home = self._layout.home(self._folder)
            top = self._folder / home.folder
            folders, files = ([], []) if home.name else look_into(top)
        except (OSError, ValueError) as error:
            return self._all_stay(why_unreadable(error, self._folder))
        models: dict[str, FoundModel] = {}
        if home.name and (one := self._model(home.name, top)) is not None:
            models[home.name] = one
        for name in folders:
            if not MODEL_NAME.fullmatch(name):
                self._note(
                    ascii(name)[1:-1],
                    "is not a model name: use at most 128 letters, digits, '.', '_' and '-', "
                    "beginning with a letter or digit",
                )
            elif (model := self._model(name, top / name)) is not None:
                models[name] = model
        if problem := self._layout.why_not_named(models):
            self._note(str(self._folder), problem)
        for file, sentence in (*models_beside(files), *not_pulled(files, folders)):
            self._note(file, sentence)
        if any(model.versions for model in models.values()):
            self._keep_for(self._quiet, models)
        elif before.models and before.device not in {None, device}:
            return self._all_stay("has no model, and is on another file system than it was")
        else:
            self._keep_for(max(self._quiet, EMPTY_SECONDS) if self._quiet else 0, models)
            if any(model.versions for model in models.values()):
                reason = f"has no model, and had {len(before.models)}"
                self._note(str(self._folder), f"{reason}; they stay for {EMPTY_SECONDS:g} s")
        return Snapshot(
            {name: self._with_signatures(model) for name, model in sorted(models.items())},
            tuple(self._problems),
            self._settling,
            self._configs,
            self._signatures,
            device,
        )

    def _all_stay(self, reason: str) -> Snapshot:
        """Return the last snapshot, because this scan failed for the given `reason`."""
        some = ", ".join(islice(self._previous.models, 5))
        stays = f"the models found before stay ({some})"
        advice = stays if some else "make it with <name>/1/model.onnx in it, or set --models"
        self._note(str(self._folder), f"{reason}; {advice}")
        return replace(self._previous, problems=tuple(self._problems))

    def _keep_for(self, seconds: float, models: dict[str, FoundModel]) -> None:
        """Add versions of the last scan to `models` unless they have been missing for `seconds`."""
        kept_models = {} if self._layout.links else self._previous.models
        for name, before in kept_models.items():
            model = models.get(name)
            present = {} if model is None else model.versions
            missing = before.versions.keys() - present.keys()
            kept = {n: before.versions[n] for n in missing if not self._is_gone((name, n), seconds)}
            if kept:
                versions = dict(sorted({**present, **kept}.items()))
                models[name] = replace(model or before, versions=versions)

    def _with_signatures(self, model: FoundModel) -> FoundModel:
        config = model.config or ModelConfig()
        numbers = sorted(config.versions.available(model.versions))
        if len(numbers) < 2 or config.allow_signature_change:
            return replace(model, signatures={}) if model.signatures else model
        before = self._previous.models.get(model.name, model).signatures
        signatures: dict[int, Signature | None] = {}
        try:
            for number in numbers:
                try:
                    signatures[number] = self._signature(model.versions[number])
                except FileNotFoundError:  # the version is gone, but kept for a moment
                    signatures[number] = before.get(number)
        except OSError as error:
            self._note(model.name, why_unreadable(error, model.folder))
            signatures = dict(before)
        return replace(model, signatures=signatures)

    def _signature(self, found: Found) -> Signature | None:
        known = self._previous.signatures
        if not is_model_file(found.path.name):
            return None
        signature = known[found.stamp] if found.stamp in known else read_signature(found.path)
        self._signatures[found.stamp] = signature
        return signature

    def _is_gone(self, version: tuple[str, int], seconds: float) -> bool:
        fresh = self._previous.settling.get(version)
        if fresh is None or fresh.stamp != GONE:
            fresh = Fresh(GONE, self._now)
        if self._now - fresh.since >= seconds:
            return True
        self._settling[version] = fresh
        return False

    def _model(self, name: str, folder: Path) -> FoundModel | None:
        try:
            inside, files = look_into(folder)
        except OSError as error:
            if not os.path.lexists(folder):  # since it was listed
                return None
            self._note(name, why_unreadable(error, folder))
            if (config := self._previous.configs.get(name)) is not None:
                self._configs[name] = config
            return self._previous.models.get(name)
        config = self._config(name, folder)
        self._problems += config.problems
        for file, sentence in config_elsewhere(files):
            self._note(f"{name}/{file}", sentence)
        versions: dict[int, Found] = {}
        loose_file = self._layout.loose_model(files)
        if loose_file:  # the folders next to it are its own
            inside = [one for one in inside if VERSION_NUMBER.fullmatch(one)]
        for version in inside:
            if not VERSION_NUMBER.fullmatch(version):
                self._note(f"{name}/{ascii(version)[1:-1]}", bad_number(version))
            elif (found := self._version(name, version, f"{folder}/{version}")) is not None:
                versions[int(version)] = found
        if loose_file and not inside:
            place = str(real_folder(folder, loose_file))
            found = self._version(name, FIRST_VERSION, place, (loose_file,))
            versions = {} if found is None else {1: found}
        if loose := PIPELINE_FILE in files and PIPELINE_FILE in self._kinds:
            if "1" in inside:
                self._note(f"{name}/{PIPELINE_FILE}", "is not read, because there is a folder 1")
            elif (found := self._version(name, "1", str(folder), (PIPELINE_FILE,))) is not None:
                versions[1] = found
        versions = dict(sorted(versions.items()))
        unpulled = list(not_pulled(files, inside))
        for file, sentence in unpulled:
            self._note(f"{name}/{file}", sentence)
        if not inside and not unpulled and not loose and not loose_file:
            several = why_not_one(files) if self._layout.loose else ""
            self._note(name, several or f"has no version{model_without_version(name, files)}")
        self._compare_wanted(name, config.config, versions)
        if not versions and name not in self._previous.models:
            return None
        problem = "; ".join(str(problem) for problem in config.problems)
        code = self._code(name, folder, files, config.config)
        return FoundModel(name, folder, versions, config.config, problem, code)

    def _code(
        self, name: str, folder: Path, files: Sequence[str], config: ModelConfig | None
    ) -> str:
        if config is None or config.transform is None:
            return ""
        stamp, changed = stamp_modules(folder, files)
        before = self._previous.models.get(name)
        if before is not None and before.code and abs(self._wall - changed) < self._quiet:
            return before.code  # a write may be in progress
        return stamp

    def _compare_wanted(
        self, name: str, config: ModelConfig | None, versions: Mapping[int, Found]
    ) -> None:
        for number in config.versions.only if config else ():
            if number not in versions and (name, number) not in self._settling:
                sentence = f"version {number} not found{available(versions)}"
                self._problems.append(Problem(f"{name}/{CONFIG_FILE}", "versions", sentence))

    def _config(self, name: str, folder: Path) -> _Config:
        before = self._previous.configs.get(name)
        stamp = _file_times(f"{folder}/{CONFIG_FILE}")
        if before is None or stamp is None or before.stamp != stamp or self._is_fresh(stamp):
            try:
                before = _Config(stamp, load_model_config(folder), ())
            except ConfigProblems as error:
                last = before.config if before else None
                before = _Config(stamp, last, error.problems)
        self._configs[name] = before
        return before

    def _is_fresh(self, stamp: FileTimes) -> bool:
        """True if a file changed just now: it may change again within the clock's resolution."""
        return bool(stamp) and self._wall - max(stamp[:2]) / 1e9 < QUIET_SECONDS

    def _version(
        self, name: str, version: str, path: str, kinds: Sequence[str] = ()
    ) -> Found | None:
        number = int(version)
        model = self._previous.models.get(name)
        before = model.versions.get(number) if model else None
        try:
            stamp, changed = stamp_files(path)
            if before is not None and before.stamp == stamp:
                return before
            folder = Path(path)
            file, problem = self._model_file(folder, kinds or self._kinds)
            hint = model_in_version(path) if problem == NO_MODEL else ""
        except OSError as error:
            if not os.path.lexists(path):  # since it was listed
                return None
            self._note(f"{name}/{version}", why_unreadable(error, Path(path)))
            return before
        fresh = self._previous.settling.get((name, number))
        if fresh is None or fresh.stamp != stamp:
            fresh = Fresh(stamp, self._now)
        if self._wall - changed < self._quiet and self._now - fresh.since < self._quiet:
            self._settling[name, number] = fresh
            return before
        if problem:
            stays = before is not None and problem != NO_MODEL
            sentence = f"{problem}; what was loaded before stays" if stays else problem + hint
            self._note(f"{name}/{version}", sentence)
            return before if stays else None
        return Found(file, folder, stamp)

    def _model_file(self, folder: Path, kinds: Sequence[str]) -> tuple[Path, str]:
        """Return a version's model file, and why it is unusable or "". Raises OSError."""
        loose = self._layout.loose_model(look_into(folder)[1]) if self._layout.loose else ""
        for kind in (*kinds, *([loose] if loose else [])):
            if (problem := why_no_model(folder / kind)) != NO_MODEL:
                return folder / kind, problem
        return folder / MODEL_FILE, NO_MODEL

    def _note(self, file: str, sentence: str) -> None:
        self._problems.append(Problem(file, "", sentence))


def _file_times(path: str) -> FileTimes | None:
    """Return the times, size and inode of a file; empty if missing, None if unknown."""
    try:
        found = os.stat(path)  # noqa: PTH116 - runs for each model at each scan
    except FileNotFoundError:
        return None if os.path.islink(path) else ()  # noqa: PTH114
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino
