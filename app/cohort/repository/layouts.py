"""Layouts of a models folder that is one model, as hosting platforms mount them.

A repository has `<name>/<version>/model.onnx`. A folder may also be one model, with
`<version>/model.onnx` or a single .onnx file of any name, which is version 1. It may be in a
subfolder, as `model/model.onnx`. The same rules apply on disk and to a remote listing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath

from cohort.errors import MODEL_NAME, quoted
from cohort.repository.folders import look_into
from cohort.repository.version_files import MODEL_FILE, PIPELINE_FILE

SUFFIX = ".onnx"

DEEPEST = 2
"""Folders that are entered one after the other, each the only one in the last."""

DEFAULT_NAME = "model"

FIRST_VERSION = "1"

Listing = Callable[[str], tuple[Sequence[str], Sequence[str]]]
"""Returns the names of the folders and of the files in a folder; paths are relative to the root."""


@dataclass(frozen=True, slots=True)
class Home:
    """The place of the models: a repository, or the folder of one model.

    folder: The path of the folder, relative to the root; "" for the root itself.
    name: The name of the model; "" for a repository.
    """

    folder: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Layout:
    """The layouts that a models folder may have.

    name: The name of the model if the folder is one model; "": the name of its folder. Default
        None: the folder is a repository.
    loose: True if a model's folder may hold a single .onnx file of any name, as version 1.
    """

    name: str | None = None
    loose: bool = False

    @property
    def links(self) -> bool:
        """True if the folder has links, whose removal means that the model is gone."""
        return self.loose and self.name is None

    @classmethod
    def of(cls, model_name: str | None, *, links: bool, remote: bool) -> Layout:
        """Return the layout of the models folder of a server with these settings.

        model_name: The name of a folder that is one model; None: the folder is a repository.
        links: True if the folder has links to models in any layout.
        remote: True if the folder mirrors a remote repository, and is then a repository itself.
        """
        if remote or (model_name is None and not links):
            return REPOSITORY
        return cls(None if links else model_name, loose=True)

    def home(self, folder: Path) -> Home:
        """Find the models in a folder. Raises OSError."""
        if self.name is None:
            return Home("")
        return find_home(lambda path: _look_below(folder, path), self.name)

    def loose_model(self, files: Sequence[str]) -> str:
        """Return the model directly among the files of a folder, or ""."""
        return loose_model(files) if self.loose else ""

    def why_not_named(self, models: Collection[str]) -> str:
        """Return the problem if the folder is a repository without a model of the name, or ""."""
        if not self.name or self.name in models or not models:
            return ""
        return (
            f"no model is named {quoted(self.name)} (COHORT_MODEL_NAME), and the folder has "
            "several: each is served under the name of its folder"
        )


REPOSITORY = Layout()


def _look_below(root: Path, path: str) -> tuple[Sequence[str], Sequence[str]]:
    """List a folder; the root must be readable, and others count as empty if they are not."""
    if not path:
        return look_into(root)
    with suppress(OSError):
        return look_into(root / path)
    return [], []


def loose_model(files: Sequence[str]) -> str:
    """Return the model among a folder's files: model.onnx, or the only .onnx file; else ""."""
    if MODEL_FILE in files:
        return MODEL_FILE
    found = [file for file in files if is_model_file(file)]
    return found[0] if len(found) == 1 else ""


def real_folder(folder: Path, file: str) -> Path:
    """Return the folder of a model's weights: that of its file, if a link has the same name.

    KServe's storage initializer makes a link for each file of a local folder.
    """
    try:
        real = (folder / file).resolve()
    except (OSError, RuntimeError):  # the scan reports it
        return folder
    return real.parent if real.name == file else folder


def why_not_one(files: Sequence[str]) -> str:
    """Return the problem of a folder with several models of which none is model.onnx, or ""."""
    if loose_model(files) or not any(map(is_model_file, files)):
        return ""
    return f"has several .onnx files; rename one to {MODEL_FILE}, and move the others away"


def is_model_file(name: str) -> bool:
    """Return True for the name of an ONNX model."""
    return name.endswith(SUFFIX) and not name.startswith(".")


def find_home(listing: Listing, name: str = "", root_name: str = DEFAULT_NAME) -> Home:
    """Find the models in a folder of any layout. Raises OSError if `listing` does.

    name: The name for a single model; default: its folder's name.
    root_name: The name of a model that is the root itself; default DEFAULT_NAME.
    """
    folder = ""
    for _ in range(DEEPEST + 1):
        folders, files = listing(folder)
        if _is_model(listing, folder, folders, files):
            own = PurePosixPath(folder).name if folder else root_name
            return Home(folder, name or (own if MODEL_NAME.fullmatch(own) else DEFAULT_NAME))
        below = [_join(folder, one) for one in folders]
        some = (one for one in below if _is_model(listing, one, *listing(one)))
        models = list(islice(some, 2))
        if len(models) == 1:
            own = PurePosixPath(models[0]).name
            return Home(models[0], name or (own if MODEL_NAME.fullmatch(own) else DEFAULT_NAME))
        if models or len(below) != 1:
            return Home(folder)
        folder = below[0]
    return Home("")


def _is_model(listing: Listing, folder: str, folders: Sequence[str], files: Sequence[str]) -> bool:
    """Return True for a folder with a model, or with folders of versions that have one."""
    if _has_model(files):
        return True
    numbered = [one for one in folders if one.isdecimal()]
    return any(_has_model(listing(_join(folder, one))[1]) for one in numbered)


def _has_model(files: Sequence[str]) -> bool:
    return PIPELINE_FILE in files or any(map(is_model_file, files))


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def as_repository(paths: Sequence[str], name: str) -> Mapping[str, str]:
    """Return, for the paths of a listing, their paths in a repository with one version 1.

    name: As in `find_home`.
    """
    inside: dict[str, tuple[set[str], set[str]]] = {"": (set(), set())}
    for path in paths:
        folder, _, file = path.rpartition("/")
        inside.setdefault(folder, (set(), set()))[1].add(file)
        while folder:
            above, _, own = folder.rpartition("/")
            inside.setdefault(above, (set(), set()))[0].add(own)
            folder = above

    def listing(folder: str) -> tuple[Sequence[str], Sequence[str]]:
        folders, files = inside.get(folder, (set(), set()))
        return sorted(folders), sorted(files)

    home = find_home(listing, name)
    prefix = f"{home.folder}/" if home.folder else ""
    below = [path for path in paths if path.startswith(prefix)]
    if not home.name:
        return {path: path[len(prefix) :] for path in below}
    loose = loose_model(listing(home.folder)[1])
    return {path: _place(path[len(prefix) :], home.name, loose) for path in below}


def _place(path: str, name: str, loose: str) -> str:
    """Return the place of a model's file in a repository.

    loose: The model directly in its folder, whose neighbours belong to version 1; "": none.
    """
    if not loose or path == "config.yaml":
        return f"{name}/{path}"
    return f"{name}/{FIRST_VERSION}/{MODEL_FILE if path == loose else path}"
