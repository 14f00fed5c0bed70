"""What a listing says: models, their versions, and what is not where it belongs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from cohort.errors import MODEL_NAME, printable
from cohort.remote.looking import Look
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
    models_beside,
)

LONGEST_NAME_BYTES = 255
"""Of one file or folder, as file systems have it."""

DEEPEST = 16
"""Folders below a version's."""

NO_NUMBERS: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class RemoteVersion:
    """A version in a remote repository, its files by their paths in its folder."""

    model: str
    number: int
    files: Mapping[str, RemoteFile]

    @property
    def identity(self) -> str:
        """Changes whenever a file of the version is replaced, added or removed."""
        rows = sorted((path, file.identity) for path, file in self.files.items())
        return hashlib.blake2b(repr(rows).encode(), digest_size=16).hexdigest()

    @property
    def modified(self) -> float:
        """When a file of it last changed, in seconds since 1970, by the clock over there."""
        return max((file.modified for file in self.files.values()), default=0.0)

    @property
    def bytes_known(self) -> int:
        """How large its files are together, as far as the listing says."""
        return sum(file.size or 0 for file in self.files.values())

    def __str__(self) -> str:
        return f"{self.model}/{self.number}"


@dataclass(slots=True)
class RemoteModel:
    """A model in a remote repository. Versions without a model or a pipeline are not among them.

    aside: Versions that cannot be taken as they are now; what is here of them stays.
    """

    config: RemoteFile | None = None
    versions: dict[int, RemoteVersion] = field(default_factory=dict)
    aside: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Listing:
    """What is in a remote repository, by the models' names, and what is wrong with it.

    aside: Models of which it is not known what there is; what is here of them stays.
    """

    models: Mapping[str, RemoteModel]
    problems: Sequence[Problem]
    aside: Set[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ModelUse:
    """What a server makes of a model's versions.

    pinned: Versions that are wanted besides those of the model's policy, such as a rollout's.
    passed_over: Versions that cannot serve, so that the next older one is wanted in addition.
    loaded: Versions that answer, or may again.
    """

    pinned: Set[int] = NO_NUMBERS
    passed_over: Set[int] = NO_NUMBERS
    loaded: Set[int] = NO_NUMBERS


def arrange(look: Look) -> Listing:
    """Sort files into models and versions. What is hidden, or an empty folder, is left out."""
    files = look.files
    folders = {str(above) for file in files for above in PurePosixPath(file.path).parents}
    models: dict[str, RemoteModel] = {}
    inside: dict[tuple[str, int], dict[str, RemoteFile]] = {}
    wrong: dict[str, str] = dict(models_beside([one.path for one in files if "/" not in one.path]))
    for file in files:
        model, _, rest = file.path.partition("/")
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
    wrong.update(look.refused)
    aside = set()
    for place in look.aside:
        model, _, version = place.partition("/")
        if VERSION_NUMBER.fullmatch(version) and MODEL_NAME.fullmatch(model):
            models.setdefault(model, RemoteModel()).aside.add(int(version))
        elif not version:
            aside.add(model)
    problems = [Problem(place, "", sentence) for place, sentence in wrong.items()]
    return Listing(models, problems, aside)


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
            return f"{printable(path)}: it lies in what is a file itself"
    there = not files.keys().isdisjoint(VERSION_FILES)
    return "" if there else f"has no {MODEL_FILE}, or not yet"


def _why_no_path(path: str) -> str:
    parts = path.split("/")
    if {"", ".", ".."} & set(parts):
        return "it would lie outside the version's folder"
    if not path.isprintable() or "\\" in path or ":" in path:
        return "its name has a character that not every file system takes"
    if max(len(part.encode()) for part in parts) > LONGEST_NAME_BYTES or len(parts) > DEEPEST:
        return "its name is too long, or too many folders deep"
    return ""


def wanted_versions(there: Set[int], policy: VersionPolicy, use: ModelUse) -> frozenset[int]:
    """The versions to have here, of those that are `there`."""
    numbers = policy.wanted(there) | policy.wanted(there - use.passed_over)
    return numbers | (use.pinned & there)


def dispensable_versions(
    here: Set[int], there: Set[int], wanted: Set[int], use: ModelUse | None
) -> frozenset[int]:
    """The versions to remove of those that are `here`, all of `wanted` among them.

    Those that are gone there; and those that nobody wants or has loaded, but for the newest one, to
    step back to. Where it is not known what is in use (None), only those that are gone.
    """
    gone = here - there
    if use is None:
        return frozenset(gone)
    spare = sorted((here & there) - wanted - use.loaded)
    return frozenset(gone | set(spare[:-1]))
