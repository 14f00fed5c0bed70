"""The content of a listing: models, their versions, and misplaced files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from cohort.errors import MODEL_NAME, printable
from cohort.remote.raw_listing import RawListing
from cohort.remote.store import RemoteFile
from cohort.repository import (
    CONFIG_FILE,
    MAX_FILES,
    MODEL_FILE,
    PIPELINE_FILE,
    VERSION_FILES,
    VERSION_NUMBER,
    Problem,
    VersionPolicy,
    as_repository,
    models_beside,
)

MAX_NAME_BYTES = 255
"""Limit of one file's or folder's name, as in most file systems."""

DEEPEST = 16
"""Limit of the parts of a path in a version's folder."""

NO_NUMBERS: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class RemoteVersion:
    """A version in a remote repository; its files are keyed by their paths in its folder."""

    model: str
    number: int
    files: Mapping[str, RemoteFile]

    @property
    def identity(self) -> str:
        """A digest that changes if a file of the version is replaced, added or removed."""
        rows = sorted((path, file.identity) for path, file in self.files.items())
        return hashlib.blake2b(repr(rows).encode(), digest_size=16).hexdigest()

    @property
    def modified(self) -> float:
        """The last change of its files, in seconds since 1970, by the repository's clock."""
        return max((file.modified for file in self.files.values()), default=0.0)

    @property
    def bytes_known(self) -> int:
        """The total size of its files in bytes, without those whose size is not listed."""
        return sum(file.size or 0 for file in self.files.values())

    def __str__(self) -> str:
        return f"{self.model}/{self.number}"


@dataclass(slots=True)
class RemoteModel:
    """A model in a remote repository. `versions` has only those with a model or a pipeline.

    aside: Versions that cannot be fetched as they are now; their local copies stay.
    """

    config: RemoteFile | None = None
    versions: dict[int, RemoteVersion] = field(default_factory=dict)
    aside: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Listing:
    """The models of a remote repository, by name, and its problems.

    aside: Models whose content could not be listed; their local copies stay.
    """

    models: Mapping[str, RemoteModel]
    problems: Sequence[Problem]
    aside: Set[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ModelUse:
    """A server's use of a model's versions.

    pinned: Versions wanted in addition to those of the model's policy, such as a rollout's.
    passed_over: Versions that cannot serve, so that the next older one is also wanted.
    loaded: Versions that serve requests, or may serve them again.
    """

    pinned: Set[int] = NO_NUMBERS
    passed_over: Set[int] = NO_NUMBERS
    loaded: Set[int] = NO_NUMBERS


def arrange(list_files: RawListing, name: str | None = None) -> Listing:
    """Sort files into models and versions; ignore hidden files and empty folders.

    name: The name of the model if the repository may be one model, in a layout of
        `cohort.repository`; default None: it has `<name>/<version>/model.onnx` only.
    """
    files = list_files.files
    folders = {str(above) for file in files for above in PurePosixPath(file.path).parents}
    models: dict[str, RemoteModel] = {}
    inside: dict[tuple[str, int], dict[str, RemoteFile]] = {}
    places = _places(files, folders, name)
    wrong: dict[str, str] = dict(models_beside([one for one in places.values() if "/" not in one]))
    for file in files:
        model, _, rest = places.get(file.path, "").partition("/")
        if not rest or (not file.size and file.path in folders) or _is_hidden(file.path):
            continue
        if not MODEL_NAME.fullmatch(model):
            wrong[printable(model)] = (
                "is not a model name: use at most 128 letters, digits, '.', '_' and '-', "
                "beginning with a letter or digit"
            )
            continue
        version, _, path = rest.partition("/")
        if rest == CONFIG_FILE:
            models.setdefault(model, RemoteModel()).config = file
        elif rest == PIPELINE_FILE:
            wrong[file.path] = f"is not read from here; put it at {model}/1/{PIPELINE_FILE}"
        elif path and VERSION_NUMBER.fullmatch(version):
            inside.setdefault((model, int(version)), {})[path] = file
        elif path:
            wrong[f"{model}/{printable(version)}"] = (
                "a version's folder must be named by its number, such as 1"
            )
    for (model, number), found in inside.items():
        if problem := _why_no_version(found):
            wrong[f"{model}/{number}"] = problem
            if not found.keys().isdisjoint(VERSION_FILES):
                models.setdefault(model, RemoteModel()).aside.add(number)
        else:
            versions = models.setdefault(model, RemoteModel()).versions
            versions[number] = RemoteVersion(model, number, found)
    wrong.update(list_files.refused)
    aside = set()
    for place in list_files.aside:
        model, _, version = place.partition("/")
        if VERSION_NUMBER.fullmatch(version) and MODEL_NAME.fullmatch(model):
            models.setdefault(model, RemoteModel()).aside.add(int(version))
        elif not version:
            aside.add(model)
    problems = [Problem(place, "", sentence) for place, sentence in wrong.items()]
    return Listing(models, problems, aside)


def _places(files: Sequence[RemoteFile], folders: Set[str], name: str | None) -> Mapping[str, str]:
    """Return the place of each file in a repository, by its path; see `arrange`."""
    if name is None:
        return {one.path: one.path for one in files}
    visible = [one.path for one in files if one.path not in folders and not _is_hidden(one.path)]
    return as_repository(visible, name)


def _is_hidden(path: str) -> bool:
    parts = path.split("/")
    return any(part.startswith(".") and part not in {".", ".."} for part in parts)


def _why_no_version(files: Mapping[str, RemoteFile]) -> str:
    if len(files) > MAX_FILES:
        return f"it has more than {MAX_FILES} files"
    for path in files:
        if problem := _why_no_path(path):
            return f"{printable(path)}: {problem}"
        if any(str(above) in files for above in PurePosixPath(path).parents):
            return f"{printable(path)}: its folder is also the name of a file"
    there = not files.keys().isdisjoint(VERSION_FILES)
    return "" if there else f"has no {MODEL_FILE}, or not yet"


def _why_no_path(path: str) -> str:
    parts = path.split("/")
    if {"", ".", ".."} & set(parts):
        return "it would lie outside the version's folder"
    if not path.isprintable() or "\\" in path or ":" in path:
        return "its name has a character that not every file system takes"
    if max(len(part.encode()) for part in parts) > MAX_NAME_BYTES or len(parts) > DEEPEST:
        return "its name is too long, or too many folders deep"
    return ""


def wanted_versions(there: Set[int], policy: VersionPolicy, use: ModelUse) -> frozenset[int]:
    """Return the versions to have in the mirror, of those that are `there`."""
    numbers = policy.wanted(there) | policy.wanted(there - use.passed_over)
    return numbers | (use.pinned & there)


def dispensable_versions(
    here: Set[int], there: Set[int], wanted: Set[int], use: ModelUse | None
) -> frozenset[int]:
    """Return the versions to remove of those that are `here`, which include all of `wanted`.

    These are the versions gone from the repository, and those neither wanted nor loaded. The newest
    of the latter stays, for a rollback. If `use` is None (unknown), only gone versions are
    returned.
    """
    gone = here - there
    if use is None:
        return frozenset(gone)
    spare = sorted((here & there) - wanted - use.loaded)
    return frozenset(gone | set(spare[:-1]))
